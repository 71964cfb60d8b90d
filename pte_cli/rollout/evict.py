"""One eviction, the same for rollout and replay: choose slots, read what leaves, free them."""

from __future__ import annotations

import torch
from torch import Tensor

from pte_cli.api import Evicted, EvictionPolicy, EvictionView
from pte_cli.rollout.cache import EMPTY, BoundedCache


def choose_slots(scores: Tensor, positions: Tensor, pinned: Tensor, most: int) -> Tensor:
    """The slots of the `most` lowest-scored tokens that may leave, lowest first, `[1 or L, b, 1 or Hkv, most]`.

    Positions below `pinned` `[b]` and empty slots never leave, not even where every other score is infinite. Of equal
    scores the older token goes first, wherever it is stored.
    """
    order = positions.argsort(dim=-1, stable=True)
    kept = positions < pinned[None, :, None, None]
    for key in (scores, kept.to(torch.uint8)):
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order[..., :most]


def _scores(policy: EvictionPolicy, view: EvictionView) -> Tensor:
    """What `policy` says. ValueError for scores of another shape than its granularity means."""
    scores = policy.score(view)
    if scores.shape != view.positions.shape:
        raise ValueError(
            f"{type(policy).__name__}.score returned shape {list(scores.shape)}; granularity {policy.granularity!r} "
            f"here means {list(view.positions.shape)}"
        )
    return scores


def find_slots(positions: Tensor, wanted: Tensor) -> Tensor:
    """The slots that hold the `wanted` positions `[1 or L, b, 1 or Hkv, n]`; any slot for padding (-1)."""
    return (positions.unsqueeze(-2) == wanted.unsqueeze(-1)).to(torch.uint8).argmax(-1)


def evict(
    cache: BoundedCache,
    rows: Tensor,
    prompt_lengths: Tensor,
    pinned: Tensor,
    counts: Tensor,
    most: int,
    *,
    policy: EvictionPolicy | None = None,
    recorded: Tensor | None = None,
) -> Evicted:
    """Free `counts[i]` tokens of each of `rows` and return what they were, keys still rotated.

    rows, prompt_lengths, pinned, counts: int64 `[b]`; `most` is the largest count, known to the host.
    The slots are those of `recorded` positions `[1 or L, b, 1 or Hkv, most]` (a replay, -1 is padding), else those
    `policy` scores lowest.
    """
    mask = torch.arange(most, device=rows.device) < counts[:, None]
    if recorded is not None:
        slots = find_slots(cache.positions[:, rows], recorded)
    else:
        view = cache.view(rows, prompt_lengths, pinned)
        slots = choose_slots(_scores(policy, view), view.positions, pinned, most)
    keys, values, positions = cache.gather(rows, slots)
    positions = positions.masked_fill(~mask[None, :, None, :], EMPTY)
    cache.free(rows, slots, mask)
    return Evicted(keys, values, positions, mask)
