"""What can be decided without computer algebra: equal texts, numbers, words, number bases and percentages.

Most answers end here, in the caller's process. What stays open goes to a worker (`workers.py`, `verify.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pte_cli.tasks.grading.extract import extract, reference_text
from pte_cli.tasks.grading.normalize import key, normalize, word
from pte_cli.tasks.grading.outcome import MAX_ANSWER, Grade, Reason
from pte_cli.tasks.grading.quantity import quantity, same

PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:percent|\\?%)\s*\}|\bpercent)$")
ASKED = re.compile(
    r"\b(?:what|which|how many|find|compute|determine|give|express\w*|as|in)\b[^.?!\d]{0,40}?(?:percent(?:age)?\b|%)",
    flags=re.IGNORECASE,
)
BASE = re.compile(r"([0-9A-Za-z]+)_\{?(\d+)\}?")
ASSIGNED = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?\s*=\s*([^=<>]+)")


@dataclass(frozen=True)
class Pair:
    """A reference and an answer that only mathematics can compare, both normalised. Any of `references` will do."""

    references: tuple[str, ...]
    answer: str


def asks_for_percentage(problem: str) -> bool:
    """Whether the question wants a percentage, so that 50 and 50 % are the same answer to it."""
    return ASKED.search(problem) is not None


def decide(reference: str, completion: str, problem: str = "") -> Grade | tuple[Pair, str]:
    """The grade of a completion, or the pair left to compare and the answer as it was written."""
    found = extract(completion)
    if isinstance(found, Grade):
        return found
    verdict = compare(reference_text(reference), found, problem)
    return (verdict, found) if isinstance(verdict, Pair) else Grade(verdict, found)


def compare(reference: str, answer: str, problem: str = "") -> Reason | Pair:
    """Right, wrong or another reason where text and numbers settle it, else the pair to be compared."""
    if not reference:
        return "no_reference"
    if reference == answer.strip():
        return "right"
    if max(len(answer), len(reference)) > MAX_ANSWER:
        return "too_long"
    wanted, given = normalize(reference), normalize(answer)
    wanted, given = _without_base(wanted, given)
    if key(wanted) == key(given):
        return "right"
    if assigned := ASSIGNED.fullmatch(given):
        given = assigned[1].strip() if "=" not in wanted else given
    references, given = _without_percent(wanted, given, problem)
    undecided = []
    for wanted in references:
        verdict = _settled(wanted, given)
        if verdict == "right":
            return "right"
        if verdict is None:
            undecided.append(wanted)
    return Pair(tuple(undecided), given) if undecided else "wrong"


def _settled(wanted: str, given: str) -> Reason | None:
    if key(wanted) == key(given):
        return "right"
    a, b = quantity(wanted), quantity(given)
    if a and b:
        lists = (a.grouped or b.grouped) and sorted(wanted.split(",")) == sorted(given.split(","))
        return "right" if same(a, b) or lists else "wrong"
    if (a_word := word(wanted)) and (b_word := word(given)):
        # Bare letters may be a product of variables; a word of the reference is a word.
        if a_word == b_word:
            return "right"
        if r"\text" in wanted or (a_word.isalpha() and len(a_word) == 1):
            return "wrong"
    return None


def _without_base(wanted: str, given: str) -> tuple[str, str]:
    """`2516_8` and `2516`: the base stands in the question, so an answer without it is complete."""
    a, b = BASE.fullmatch(wanted), BASE.fullmatch(given)
    if a and not b and re.fullmatch(r"[0-9A-Za-z]*\d[0-9A-Za-z]*", given):
        return a[1], given
    if b and not a and re.fullmatch(r"[0-9A-Za-z]*\d[0-9A-Za-z]*", wanted):
        return wanted, b[1]
    return wanted, given


def _without_percent(wanted: str, given: str, problem: str) -> tuple[list[str], str]:
    """The references to compare with and the answer, all without a percent sign at their end.

    The sign means a hundredth. Where the reference has one, or the question asks for one, it may also be left out.
    """
    plain_wanted, plain_given = PERCENT.sub("", wanted), PERCENT.sub("", given)
    wants, gives = plain_wanted != wanted, plain_given != given
    if wants == gives:
        return [plain_wanted], plain_given
    if wants:
        return [plain_wanted, rf"\frac{{{plain_wanted}}}{{100}}"], plain_given
    hundred_times = _times_100(plain_wanted)
    return ([hundred_times, plain_wanted] if asks_for_percentage(problem) else [hundred_times]), plain_given


def _times_100(text: str) -> str:
    number = quantity(text)
    if number is None:
        return rf"100\cdot\left({text}\right)"
    value = number.value * 100
    whole = str(value.numerator) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return whole
