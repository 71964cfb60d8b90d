"""`updates`: assign values to variables one by one while thinking, then report the last value of some of them.

Prompt `? b a : a b a c : 4 7 2 2 =`, thinking `a 4 b 7 a 2 c 2`, answer `! b 7 a 2`. Variables are assigned more than
once, so what was kept of an evicted assignment has to be replaced when a later one comes, not only added to.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pte_cli import hookimpl
from pte_cli.api import Problem, TaskSpec
from pte_plugins.tasks.recall import LABELS, VALUES, RecallTask, write


class UpdatesOptions(BaseModel):
    """Options of the task `updates` (`--set task.NAME=VALUE`; `--entries N` for the first)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: int = Field(12, ge=2, le=26, description="assignments per problem: the difficulty")
    variables: int = Field(6, ge=1, le=26, description="variables they are made to, at most task.entries")
    queries: int = Field(3, ge=1, description="variables the answer must report, at most all")

    @model_validator(mode="after")
    def _fits(self) -> UpdatesOptions:
        if self.variables > self.entries:
            raise ValueError(f"variables = {self.variables}: at most task.entries = {self.entries}; each is assigned")
        if self.queries > self.variables:
            raise ValueError(f"queries = {self.queries}: at most task.variables = {self.variables} can be asked for")
        return self


@dataclass(frozen=True)
class UpdatesTask(RecallTask):
    """entries: how many assignments there are. queries: how many variables are asked for, of how many `variables`."""

    variables: int = 6

    def sample(self, rng: random.Random) -> Problem:
        """A random problem: variables, the order of their assignments, values, and which are asked for."""
        names = rng.sample(LABELS, self.variables)
        labels = _order(names, self.entries, rng)
        values = [rng.choice(VALUES) for _ in labels]
        last = {label: i for i, label in enumerate(labels)}
        return write(labels, values, [last[name] for name in rng.sample(names, self.queries)])


def _order(names: list[str], count: int, rng: random.Random) -> list[str]:
    """`count` of `names` in random order, each at least once."""
    order = names + rng.choices(names, k=count - len(names))
    rng.shuffle(order)
    return order


def build(options: UpdatesOptions) -> UpdatesTask:
    return UpdatesTask(options.entries, options.queries, options.variables)


@hookimpl
def pte_tasks() -> list[TaskSpec]:
    return [TaskSpec("updates", "assign values to variables, then report the last of some", build, UpdatesOptions)]
