"""What a rollout leaves behind: enough to score the same tokens again under exactly the context they had."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from pte_cli.errors import UsageError
from pte_cli.limits import MIN_WINDOW


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


def window(budget: int, prompt_length: int) -> int:
    """W = C - prompt: the room for thinking tokens. UsageError when fewer than 4 are left."""
    room = budget - prompt_length
    if room < MIN_WINDOW:
        raise UsageError(
            f"evict.budget = {budget}: a prompt of {prompt_length} tokens leaves {max(room, 0)} for thinking; "
            f"at least {prompt_length + MIN_WINDOW} is needed for it"
        )
    return room


def eviction_count(budget: int, prompt_length: int, frac: float) -> int:
    """n = max(1, floor(frac * W)): tokens that leave each time the budget is full."""
    # The tiny term undoes binary rounding: 0.29 * 100 is 28.999999999999996, and the user means 29.
    return max(1, int(frac * window(budget, prompt_length) + 1e-9))


def eviction_schedule(
    prompt_length: int, completion_length: int, budget: int | None, frac: float
) -> tuple[Eviction, ...]:
    """When a sequence of these lengths evicts, and how many: a full cache evicts before the next token is fed."""
    if budget is None:
        return ()
    room, count = window(budget, prompt_length), eviction_count(budget, prompt_length, frac)
    return tuple(Eviction(step, count) for step in range(room, completion_length - 1, count))


def worked_trace(prompt: tuple[int, ...], completion: tuple[int, ...], budget: int | None, frac: float) -> Trace:
    """A trace for a given completion: the schedule a rollout would have had; the policy picks at replay."""
    evictions = eviction_schedule(len(prompt), len(completion), budget, frac)
    return Trace(prompt, completion, budget=budget, evictions=evictions)
