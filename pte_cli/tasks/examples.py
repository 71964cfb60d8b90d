"""Where the trainer's examples come from: one contract, whatever makes them. Here: procedural tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pte_cli.api import Problem, Task
from pte_cli.tasks.codec import Codec, Worked
from pte_cli.tasks.streams import held_out, training_stream


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and what its examples' maker needs to know about it when it scores a completion."""

    prompt: tuple[int, ...]
    item: Any


@dataclass(frozen=True)
class Completion:
    """Sampled token ids; `finish` is "stop" for those that ended by themselves, "length" for those cut off."""

    ids: tuple[int, ...]
    finish: str


@dataclass(frozen=True)
class Scores:
    """What n completions are worth.

    rewards: NaN for those about which no reward had anything to say.
    right: whether each is right; None where that can't be told.
    by_name: the values of every single reward, None where it had none; empty for a task that scores itself.
    """

    rewards: Sequence[float]
    right: Sequence[bool | None]
    by_name: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


class Examples(Protocol):
    """A seeded, endless supply of examples, and a fixed set of questions that are never trained on."""

    codec: Codec
    scored: bool
    """Whether `score` can tell anything; False where there is neither reference nor reward."""

    def worked(self, count: int) -> list[Worked]:
        """The next worked examples."""
        ...

    def questions(self, count: int) -> list[Question]:
        """The next questions to train on."""
        ...

    def held_out(self, count: int, seed: int) -> list[Question]:
        """At most `count` held-out questions; the same for the same seed, however much was drawn before."""
        ...

    def score(self, questions: Sequence[Question], completions: Sequence[Completion]) -> Scores:
        """One score for each completion."""
        ...

    def answer_at(self, question: Question, completion: Completion) -> int:
        """The index of the first token of the answer in a completion; of its last token where that can't be told."""
        ...

    def position(self) -> Any:
        """How far training has drawn, as JSON: what `go_to` needs to draw the same again from there."""
        ...

    def go_to(self, position: Any) -> None:
        """Go on drawing from a `position`."""
        ...


class TaskExamples:
    """Problems of a procedural task, which scores them itself. A completion that was cut off has no answer: 0."""

    scored = True

    def __init__(self, task: Task, name: str, codec: Codec, seed: int) -> None:
        self.task, self.name, self.codec = task, name, codec
        self.stream = training_stream(name, seed)

    def worked(self, count: int) -> list[Worked]:
        return [self.codec.worked(self.task.sample(self.stream)) for _ in range(count)]

    def questions(self, count: int) -> list[Question]:
        return [self._question(self.task.sample(self.stream)) for _ in range(count)]

    def held_out(self, count: int, seed: int) -> list[Question]:
        return [self._question(problem) for problem in held_out(self.task, self.name, count, seed)]

    def score(self, questions: Sequence[Question], completions: Sequence[Completion]) -> Scores:
        found = [
            self.task.score(question.item, self.codec.text(completion.ids)) if completion.finish == "stop" else 0.0
            for question, completion in zip(questions, completions, strict=True)
        ]
        return Scores(found, [score == 1 for score in found])

    def answer_at(self, question: Question, completion: Completion) -> int:
        """An answer is as long as that of the worked completion, and a completion that was cut off has none."""
        length = self.codec.worked(question.item).answer if completion.finish == "stop" else 1
        return max(0, len(completion.ids) - length)

    def position(self) -> Any:
        version, words, gauss = self.stream.getstate()
        return [version, list(words), gauss]

    def go_to(self, position: Any) -> None:
        version, words, gauss = position
        self.stream.setstate((version, tuple(words), gauss))

    def _question(self, problem: Problem) -> Question:
        return Question(self.codec.prompt(problem), problem)
