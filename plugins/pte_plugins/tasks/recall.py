"""`recall`: pair labels with values one by one while thinking, then report the pairs asked for.

Prompt `? c a : a b c : 4 7 7 =`, thinking `a 4 b 7 c 7`, answer `! c 7 a 4`. The prompt lists labels and values
apart from each other; which belongs to which is worked out entry by entry in the thinking. The window is too small
for it, so by the time of the answer the early pairs have been evicted. Everything the model writes is determined
by the prompt: there is nothing to game.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from pte_cli import hookimpl
from pte_cli.api import Problem, TaskSpec

LABELS = tuple(string.ascii_lowercase)
VALUES = tuple(string.digits)
ASK, LISTS, THINK, ANSWER = "?", ":", "=", "!"
WORDS = (ASK, LISTS, THINK, ANSWER, *VALUES, *LABELS)
"""The task's whole vocabulary; a tokenizer needs one token for each word."""


class RecallOptions(BaseModel):
    """Options of the task `recall` (`--set task.NAME=VALUE`; `--entries N` for the first)."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    entries: int = Field(12, ge=2, le=26, description="label-value pairs per problem: the difficulty")
    queries: int = Field(3, ge=1, description="pairs the answer must report, at most all")

    @field_validator("queries")
    @classmethod
    def _at_most_all(cls, queries: int, info: ValidationInfo) -> int:
        entries = info.data.get("entries")
        if entries is not None and queries > entries:
            raise ValueError(f"at most task.entries = {entries} can be asked for")
        return queries


@dataclass(frozen=True)
class RecallTask:
    """entries: how many pairs there are, the difficulty. queries: how many of them the answer must report."""

    entries: int = 12
    queries: int = 3

    @property
    def words(self) -> tuple[str, ...]:
        """Each must be one token."""
        return WORDS

    @property
    def shortest_prompt(self) -> int:
        """Words of every prompt of this size; each is one token."""
        return 4 + self.queries + 2 * self.entries

    def sample(self, rng: random.Random) -> Problem:
        """A random problem: labels and their order, values, queries and their order."""
        labels = rng.sample(LABELS, self.entries)
        values = [rng.choice(VALUES) for _ in labels]
        return write(labels, values, rng.sample(range(self.entries), self.queries))

    def score(self, problem: Problem, completion: str) -> float:
        """Share of the queries answered right, 0 to 1. 1 means that the answer is right.

        The answer is what follows the last `!`; it must report the labels asked for, in order, and nothing else.
        """
        given = completion.split()
        if ANSWER not in given:
            return 0.0
        given = given[len(given) - given[::-1].index(ANSWER) :]
        wanted = problem.answer.split()[1:]
        if len(given) != len(wanted):
            return 0.0
        pairs = range(0, len(wanted), 2)
        return sum(given[i : i + 2] == wanted[i : i + 2] for i in pairs) / len(pairs)


def write(labels: Sequence[str], values: Sequence[str], asked: Sequence[int]) -> Problem:
    """The problem of pairing `labels` with `values` and reporting those at the indices `asked`, in that order."""
    return Problem(
        prompt=" ".join([ASK, *(labels[i] for i in asked), LISTS, *labels, LISTS, *values, THINK]),
        thinking=" ".join(word for pair in zip(labels, values, strict=True) for word in pair),
        answer=" ".join([ANSWER, *(word for i in asked for word in (labels[i], values[i]))]),
    )


def build(options: RecallOptions) -> RecallTask:
    return RecallTask(options.entries, options.queries)


@hookimpl
def pte_tasks() -> list[TaskSpec]:
    return [TaskSpec("recall", "pair labels with values, then report some of the pairs", build, RecallOptions)]
