"""`reasoning-gym`: what reasoning-gym's own scorer gives, for rows of its tasks (pip install 'pte-cli[gym]')."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pte_cli import hookimpl
from pte_cli.api import NoOptions, RewardSpec
from pte_cli.errors import UsageError

TAG = re.compile(r"<answer>(.*?)</answer>", flags=re.DOTALL)


class ReasoningGym:
    """Needs the columns `question`, `answer` and `metadata` of reasoning-gym's rows."""

    def __init__(self) -> None:
        self.scorers: dict[str, Callable[..., float]] = {}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """0 to 1; None where a row does not say which task it is from."""
        from pte_cli.tasks.rewards import text_of

        if "metadata" not in columns or "answer" not in columns:
            raise UsageError(
                f"reward reasoning-gym: needs the columns answer and metadata (there are: {', '.join(columns)})"
            )
        rows = [
            {"question": question, "answer": answer, "metadata": metadata}
            for question, answer, metadata in zip(
                columns.get("problem", prompts), columns["answer"], columns["metadata"], strict=True
            )
        ]
        return [self.score(text_of(text), row) for text, row in zip(completions, rows, strict=True)]

    def score(self, completion: str, row: Mapping[str, Any]) -> float | None:
        """The task's own score of the answer in a completion."""
        name = (row["metadata"] or {}).get("source_dataset")
        return None if name is None else float(self._scorer(name)(final_answer(completion), row))

    def _scorer(self, name: str) -> Callable[..., float]:
        if name not in self.scorers:
            try:
                from reasoning_gym import get_score_answer_fn
            except ImportError as error:
                raise UsageError(
                    f"reward reasoning-gym: needs reasoning-gym ({error}); pip install 'pte-cli[gym]'"
                ) from None
            self.scorers[name] = get_score_answer_fn(name)
        return self.scorers[name]


def final_answer(completion: str) -> str | None:
    """What the last `<answer>` holds, else the last box, else all outside the reasoning; None where that never ends.

    Tags are reasoning-gym's own convention; boxes are that of models trained on mathematics.
    """
    from pte_cli.tasks.grading.extract import last_box, outside_thinking

    outside = outside_thinking(completion)
    if outside is None:
        return None
    tagged = TAG.findall(outside)
    boxed = last_box(outside)
    return (tagged[-1] if tagged else outside if boxed is None else boxed).strip()


def build(_options: NoOptions) -> ReasoningGym:
    return ReasoningGym()


@hookimpl
def pte_rewards() -> list[RewardSpec]:
    return [RewardSpec("reasoning-gym", "the score of a reasoning-gym task's own scorer", build)]
