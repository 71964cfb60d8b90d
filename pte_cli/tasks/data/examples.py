"""Examples of the user's data: an epoch after another in a seeded order, scored by reward plugins."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from itertools import count as count_up

from pte_cli.config import RewardConfig
from pte_cli.errors import UsageError
from pte_cli.plugin_options import check_options
from pte_cli.registry import build, load_registry
from pte_cli.tasks.codec import Codec, Worked
from pte_cli.tasks.data.rendered import Example, RenderedDataset, check_known
from pte_cli.tasks.examples import Completion, Question, Scores
from pte_cli.tasks.grading.extract import answer_start
from pte_cli.tasks.prompts import THINK, encode_text
from pte_cli.tasks.rewards import Batch, NamedReward, combine
from pte_cli.tasks.text_stream import TextStream


class DataExamples:
    """Rows of data. Completions are tokenised once, when this is made; a prompt's ids are those of its rendering.

    A completion is right when the first reward gives 1 and it ended by itself.
    """

    def __init__(
        self, dataset: RenderedDataset, rewards: Sequence[NamedReward], codec: Codec, *, seed: int, imitates: bool
    ) -> None:
        self.dataset, self.rewards, self.codec = dataset, rewards, codec
        self.scored = bool(rewards)
        self.seed, self.drawn = seed, 0
        self.order = epochs(len(dataset.train), seed)
        self.completions = [self._completion(example) for example in dataset.train] if imitates else []
        places = [example.row.place for example in dataset.train] if imitates else []
        check_known("completions", list(zip(places, self.completions, strict=True)), codec.tokenizer)

    def worked(self, count: int) -> list[Worked]:
        return [
            # Which tokens are the answer is not known: none is weighted more than another.
            Worked(self.dataset.train[i].prompt.ids, tuple(self.completions[i]), answer=0)
            for i in self._next(count)
        ]

    def questions(self, count: int) -> list[Question]:
        return [_question(self.dataset.train[i]) for i in self._next(count)]

    def position(self) -> int:
        return self.drawn

    def go_to(self, position: int) -> None:
        self.order, self.drawn = epochs(len(self.dataset.train), self.seed), 0
        self._next(position)

    def _next(self, count: int) -> list[int]:
        """The next `count` rows' indices."""
        self.drawn += count
        return list(islice(self.order, count))

    def held_out(self, count: int, seed: int) -> list[Question]:
        rows = self.dataset.held_out
        chosen = random.Random(f"pte/eval/{seed}").sample(range(len(rows)), min(count, len(rows)))
        return [_question(rows[i]) for i in sorted(chosen)]

    def score(self, questions: Sequence[Question], completions: Sequence[Completion]) -> Scores:
        found = combine(self.rewards, self._batch([question.item for question in questions], completions))
        first = found.by_name[self.rewards[0].name]
        right = [
            None if value is None else value == 1 and completion.finish == "stop"
            for value, completion in zip(first, completions, strict=True)
        ]
        return Scores(found.totals, right, found.by_name)

    def answer_at(self, question: Question, completion: Completion) -> int:
        """What follows the reasoning, or holds the last box where that begins later."""
        stream, start = TextStream(self.codec.tokenizer), answer_start(self.codec.text(completion.ids))
        written = accumulate(len(stream.add(token)) for token in completion.ids)
        last = len(completion.ids) - 1
        return last if start is None else next((i for i, end in enumerate(written) if end > start), last)

    def _batch(self, examples: Sequence[Example], completions: Sequence[Completion]) -> Batch:
        """What rewards are called with: TRL's arguments, every column, and how each completion ended."""
        rows = [example.row for example in examples]
        texts = [self.codec.text(completion.ids) for completion in completions]
        names = dict.fromkeys(name for row in rows for name in row.columns)
        columns = {name: [row.columns.get(name) for row in rows] for name in names}
        return Batch(
            prompts=[row.prompt for row in rows],
            completions=[
                text if isinstance(row.prompt, str) else [{"role": "assistant", "content": text}]
                for row, text in zip(rows, texts, strict=True)
            ],
            completion_ids=[list(completion.ids) for completion in completions],
            columns={**columns, "finish": [completion.finish for completion in completions]},
            rows=[row.place for row in rows],
        )

    def _completion(self, example: Example) -> array[int]:
        """The recorded completion's ids and one end token. UsageError where it would end before its end."""
        text = example.row.completion or ""
        if example.prompt.thinks and text.lstrip().startswith(THINK):
            # The prompt has opened the thinking already.
            text = text.lstrip().removeprefix(THINK).removeprefix("\n")
        ids = encode_text(self.codec.tokenizer, text)
        while ids and ids[-1] in self.codec.ends:
            ids = ids[:-1]
        early = [token for token in ids if token in self.codec.ends]
        if early:
            token = self.codec.tokenizer.convert_ids_to_tokens(early[0])
            raise UsageError(f"{example.row.place}: the end token {token!r} is in the middle of its completion")
        return array("i", [*ids, self.codec.ends[0]])


def epochs(rows: int, seed: int) -> Iterator[int]:
    """Indices of `rows` rows for ever: every row once an epoch, each epoch in an order of its own."""
    for epoch in count_up():
        order = list(range(rows))
        random.Random(f"pte/order/{seed}/{epoch}").shuffle(order)
        yield from order


def build_rewards(names: Sequence[str], settings: RewardConfig) -> list[NamedReward]:
    """The rewards with their options and weights."""
    registry = load_registry()
    weights = settings.weights or (1.0,) * len(names)
    return [
        NamedReward(name, build(spec, check_options(f"reward.options.{name}", spec, settings.options.get(name, {}))), w)
        for name, w in zip(names, weights, strict=True)
        for spec in [registry.reward(name)]
    ]


def _question(example: Example) -> Question:
    return Question(example.prompt.ids, example)
