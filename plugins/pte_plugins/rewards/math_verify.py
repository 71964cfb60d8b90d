"""`math-verify`: 1 where the final boxed answer is the reference's, else 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import RewardSpec
from pte_cli.errors import UsageError


class Options(BaseModel):
    """Where the reference is and what grading may cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str | None = Field(None, description="the column with the reference; answer or solution by default")
    seconds: float = Field(2.0, gt=0, description="processor time per answer")
    workers: int | None = Field(None, ge=1, description="grading processes; by default one per processor, at most 4")


class MathVerify:
    """Grades in worker processes that start with the first answer that needs one and end with this object."""

    def __init__(self, options: Options) -> None:
        from pte_cli.tasks.grading import Grader

        self.columns = [options.column] if options.column else ["answer", "solution"]
        self.grader = Grader(options.workers, options.seconds)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """1 or 0; None where there is no reference, or none that can be compared.

        0 for a completion that was cut off (`finish` is not "stop"), whatever it boxed before: it had not ended.
        A `problem` column, where there is one, tells whether a percentage is asked for.
        """
        from pte_cli.tasks.grading import Item
        from pte_cli.tasks.rewards import text_of

        column = next((name for name in self.columns if name in columns), None)
        if column is None:
            known = ", ".join(columns) or "none"
            raise UsageError(
                f"reward math-verify: no column {' or '.join(self.columns)} in the data (its columns: {known}); "
                "set the option column"
            )
        problems = columns.get("problem", [""] * len(completions))
        items = [
            Item("" if reference is None else str(reference), text_of(completion), str(problem or ""))
            for reference, completion, problem in zip(columns[column], completions, problems, strict=True)
        ]
        ended = [finish == "stop" for finish in columns.get("finish", ["stop"] * len(completions))]
        return [
            None if grade.reason == "no_reference" else grade.score * end
            for grade, end in zip(self.grader.grade(items), ended, strict=True)
        ]


@hookimpl
def pte_rewards() -> list[RewardSpec]:
    return [RewardSpec("math-verify", "1 where the final boxed answer equals the reference", MathVerify, Options)]
