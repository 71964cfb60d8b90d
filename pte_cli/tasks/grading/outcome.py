"""What grading one completion results in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Reason = Literal[
    "right",
    "wrong",
    "no_box",
    "open_think",
    "cut_off",
    "empty_box",
    "unparsable",
    "too_long",
    "timeout",
    "crashed",
    "no_reference",
]
REASONS: tuple[Reason, ...] = get_args(Reason)
"""Why a completion has its score, in the order they are shown:

right, wrong: compared with the reference. no_box: no box outside the reasoning. open_think: `<think>` never closed.
cut_off: the last box is not closed. empty_box: nothing in it. unparsable: no mathematics in it, and not the
reference's text. too_long: an answer beyond `MAX_ANSWER` characters. timeout: more time or memory needed than allowed.
crashed: the worker process died. no_reference: the reference itself has no form that can be compared.
"""

MAX_ANSWER = 2000
"""Characters of an answer that are looked at by mathematics; longer ones can only equal the reference's text."""


@dataclass(frozen=True)
class Grade:
    """The result for one completion. `answer`: the text of its final box, None where there is none."""

    reason: Reason
    answer: str | None = None

    @property
    def right(self) -> bool:
        return self.reason == "right"

    @property
    def score(self) -> float:
        """1 for a right answer, else 0."""
        return float(self.right)
