"""A few held-out completions token by token: their text, and when each token left the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pte_cli.rollout.trace import Trace
from pte_cli.tasks.examples import Completion, Examples, Question, Scores
from pte_cli.tasks.text_stream import TextStream

SAMPLES = 3
"""Problems that are recorded of each kind: right, wrong, and those that could not be graded."""

Departures = list[tuple[int, float]]
"""(thinking tokens that had been fed, share of layers and heads that dropped the token then), by rising first."""


def sample_records(
    examples: Examples, questions: Sequence[Question], traces: Sequence[Trace], scores: Scores
) -> list[dict[str, Any]]:
    """The first problems that went right and the first that went wrong, in the order of the problems, ready for JSON.

    tokens: the text of each token, prompt first. left: for each token when it left; empty for those that never did.
    answer: the index, among the thinking tokens, of the first one of the answer.
    """
    return [
        {
            "problem": i,
            "right": scores.right[i],
            "finish": traces[i].finish,
            "budget": traces[i].budget,
            "prompt_tokens": len(traces[i].prompt),
            "answer": examples.answer_at(questions[i], Completion(traces[i].completion, traces[i].finish)),
            "tokens": list(pieces(TextStream(examples.codec.tokenizer), traces[i])),
            "left": departures(traces[i]),
        }
        for i in chosen(scores.right)
    ]


def chosen(right: Sequence[bool | None]) -> list[int]:
    """The indices of the first `SAMPLES` of each kind."""
    kinds = {kind: [i for i, found in enumerate(right) if found is kind] for kind in (True, False, None)}
    return sorted(i for found in kinds.values() for i in found[:SAMPLES])


def pieces(stream: TextStream, trace: Trace) -> Iterator[str]:
    """The text of each token of prompt and completion; joined, that of the whole.

    A token that ends in the middle of a character has none: the token that ends the character has all of it.
    """
    *tokens, last = (*trace.prompt, *trace.completion)
    for token in tokens:
        yield stream.add(token)
    yield stream.add(last) + stream.finish()


def departures(trace: Trace) -> list[Departures]:
    """For each token of prompt and completion when it left the cache, and in which share of layers and heads.

    The shares are of the layers and KV heads between which the policy makes a difference: with a policy that drops the
    same token everywhere they are 1.
    """
    left: list[Departures] = [[] for _ in (*trace.prompt, *trace.completion)]
    for eviction in trace.evictions:
        if eviction.positions is None:
            continue
        layers, heads, _ = eviction.positions.shape
        positions, counts = eviction.positions.unique(return_counts=True)
        for position, count in zip(positions.tolist(), counts.tolist(), strict=True):
            left[position].append((eviction.step, count / (layers * heads)))
    return left
