"""What a rollout leaves behind: enough to score the same tokens again under exactly the context they had."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from pte_cli.budget import eviction_count


@dataclass(frozen=True)
class Eviction:
    """One eviction of one row.

    step: how many thinking tokens had been fed to the model before it.
    count: how many tokens left each layer and head.
    positions: int32 `[1 or L, 1 or Hkv, count]` on the CPU; None where the replay shall ask the policy itself
        (worked examples, which no rollout has produced).
    """

    step: int
    count: int
    positions: Tensor | None = None


@dataclass(frozen=True)
class Trace:
    """One sequence: its tokens, their log-probabilities when they were sampled, and every eviction.

    logprobs: float32 `[len(completion)]` at the sampling temperature, over the whole vocabulary that may be sampled;
        None for worked examples.
    finish: "stop" (an end token, which is part of the completion) or "length".
    budget: tokens the cache may hold; None when nothing is ever evicted.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    finish: str = "stop"
    budget: int | None = None
    evictions: tuple[Eviction, ...] = ()
    logprobs: Tensor | None = field(default=None, repr=False)

    @property
    def fed(self) -> tuple[int, ...]:
        """The tokens the model was fed: all but the last, which nothing follows."""
        return self.prompt + self.completion[:-1]


def eviction_schedule(
    prompt_length: int, completion_length: int, budget: int | None, frac: float, pinned: int | None = None
) -> tuple[Eviction, ...]:
    """When a sequence of these lengths evicts, and how many: a full cache evicts before the next token is fed."""
    if budget is None:
        return ()
    count = eviction_count(budget, prompt_length, frac, pinned)
    return tuple(Eviction(step, count) for step in range(budget - prompt_length, completion_length - 1, count))


def worked_trace(
    prompt: tuple[int, ...],
    completion: tuple[int, ...],
    budget: int | None,
    frac: float,
    pinned: int | None = None,
) -> Trace:
    """A trace for a given completion: the schedule a rollout would have had; the policy picks at replay.

    pinned: tokens from the start that never leave; by default the prompt.
    """
    evictions = eviction_schedule(len(prompt), len(completion), budget, frac, pinned)
    return Trace(prompt, completion, budget=budget, evictions=evictions)
