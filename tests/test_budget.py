"""The arithmetic of the budget, by hand."""

from __future__ import annotations

import pytest

from pte_cli.budget import eviction_count, window
from pte_cli.errors import UsageError
from pte_cli.rollout.trace import eviction_schedule


def test_window():
    assert window(48, 31) == 17
    assert window(8, 4) == 4
    for prompt in (5, 8, 100):
        with pytest.raises(UsageError, match=f"evict.budget = 8: a prompt of {prompt} tokens .* at least {prompt + 4}"):
            window(8, prompt)


@pytest.mark.parametrize(
    ("room", "frac", "count"),
    [(17, 0.25, 4), (16, 0.25, 4), (4, 0.1, 1), (100, 0.29, 29), (30, 0.1, 3), (7, 1.0, 7), (1000, 0.001, 1)],
)
def test_how_many_leave(room, frac, count):
    assert eviction_count(room + 10, 10, frac) == count


def test_when_a_sequence_evicts():
    """W = 17 and n = 4: before the 18th thinking token is fed, then before every 4th; the last token is never fed."""
    assert [(e.step, e.count) for e in eviction_schedule(31, 32, 48, 0.25)] == [(17, 4), (21, 4), (25, 4), (29, 4)]
    assert eviction_schedule(31, 18, 48, 0.25) == ()
    assert [e.step for e in eviction_schedule(31, 19, 48, 0.25)] == [17]
    assert eviction_schedule(31, 1000, None, 0.25) == ()
