"""The arithmetic of the budget, which the early checks, the engine and worked examples share."""

from __future__ import annotations

from pte_cli.errors import UsageError

MIN_WINDOW = 4
"""A prompt must leave room for at least this many thinking tokens."""


def window(budget: int, prompt_length: int, pinned: int | None = None) -> int:
    """W = C - pinned: the room for tokens that may leave; by default the whole prompt is pinned.

    UsageError when fewer than 4 are left, or the prompt alone does not fit.
    """
    kept = prompt_length if pinned is None else pinned
    if prompt_length > budget:
        raise UsageError(
            f"evict.budget = {budget}: a prompt of {prompt_length} tokens does not fit; "
            f"use at least {max(prompt_length, kept + MIN_WINDOW)}"
        )
    room = budget - kept
    if room < MIN_WINDOW:
        what = f"a prompt of {kept} tokens leaves" if kept == prompt_length else f"{kept} pinned tokens leave"
        raise UsageError(
            f"evict.budget = {budget}: {what} {max(room, 0)} for thinking; use at least {kept + MIN_WINDOW}"
        )
    return room


def eviction_count(budget: int, prompt_length: int, frac: float, pinned: int | None = None) -> int:
    """n = max(1, floor(frac * W)): tokens that leave each time the budget is full."""
    # The tiny term undoes binary rounding: 0.29 * 100 is 28.999999999999996, and the user means 29.
    return max(1, int(frac * window(budget, prompt_length, pinned) + 1e-9))
