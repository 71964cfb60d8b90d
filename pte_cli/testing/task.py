"""What a task must do."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from pte_cli.api import Problem
from pte_cli.testing.contract import Contract, require

COUNT = 32


class TaskContract(Contract):
    """Checks of a procedural task."""

    kind: ClassVar[str] = "task"

    def test_problems_come_from_the_random_stream_only(self) -> None:
        """The same stream gives the same problems, another one others."""
        task = self.make()
        require(_sample(task, 0) == _sample(task, 0), "the same random stream gives other problems")
        require(_sample(task, 0) == _sample(self.make(), 0), "built anew, the same random stream gives other problems")
        require(_sample(task, 0) != _sample(task, 1), "another random stream gives the same problems")

    def test_worked_completions_are_right(self) -> None:
        """Thinking and answer of a problem score 1; nothing at all scores less, and all scores are 0 to 1."""
        task = self.make()
        for problem in _sample(task, 0):
            right = task.score(problem, f"{problem.thinking} {problem.answer}")
            require(right == 1, f"the worked completion of {problem.prompt!r} scores {right!r}, not 1")
            none = task.score(problem, "")
            require(0 <= none < 1, f"an empty completion of {problem.prompt!r} scores {none!r}, not 0 to below 1")

    def test_words_and_shortest_prompt(self) -> None:
        """No prompt has fewer words than `shortest_prompt`; where `words` is set, nothing else is written."""
        task = self.make()
        for problem in _sample(task, 0):
            count, shortest = len(problem.prompt.split()), task.shortest_prompt
            require(count >= shortest, f"a prompt has {count} words; shortest_prompt is {shortest}")
            written = set(f"{problem.prompt} {problem.thinking} {problem.answer}".split())
            unknown = sorted(written - set(task.words)) if task.words else []
            require(not unknown, f"it writes {unknown}, which are not in words")


def _sample(task: Any, seed: int) -> list[Problem]:
    rng = random.Random(seed)
    return [task.sample(rng) for _ in range(COUNT)]
