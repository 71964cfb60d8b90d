"""The arithmetic of the budget, which the early checks, the engine and worked examples share."""

from __future__ import annotations

from pte_cli.errors import UsageError

MIN_WINDOW = 4
"""A prompt must leave room for at least this many thinking tokens."""


def window(budget: int, prompt_length: int) -> int:
    """W = C - prompt: the room for thinking tokens. UsageError when fewer than 4 are left."""
    room = budget - prompt_length
    if room < MIN_WINDOW:
        raise UsageError(
            f"evict.budget = {budget}: a prompt of {prompt_length} tokens leaves {max(room, 0)} for thinking; "
            f"use at least {prompt_length + MIN_WINDOW}"
        )
    return room


def eviction_count(budget: int, prompt_length: int, frac: float) -> int:
    """n = max(1, floor(frac * W)): tokens that leave each time the budget is full."""
    # The tiny term undoes binary rounding: 0.29 * 100 is 28.999999999999996, and the user means 29.
    return max(1, int(frac * window(budget, prompt_length) + 1e-9))
