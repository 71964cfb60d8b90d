"""KeyDiff keeps the contract, and computes what the paper says."""

from __future__ import annotations

import pytest
import torch
from pte_evict_keydiff import KeyDiff, KeyDiffOptions

from pte_cli.testing import EvictionContract


class TestKeyDiff(EvictionContract):
    plugin = "pte-evict-keydiff:keydiff"


class TestKeyDiffWithMoreRecent(EvictionContract):
    plugin = "pte-evict-keydiff:keydiff"
    options = {"recent": 3}


class View:
    """What the policy reads of an EvictionView."""

    def __init__(self, keys, positions):
        self.keys, self.positions = keys, positions


def test_by_hand():
    """Keys at 0, 0, 90 and 90 degrees with unequal lengths: the anchor points to 45 degrees."""
    keys = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 5.0], [0.0, 1.0]]).view(1, 1, 1, 4, 2)
    scores = KeyDiff(KeyDiffOptions()).score(View(keys, torch.tensor([0, 1, 2, 3]).view(1, 1, 1, 4)))
    assert scores.flatten().tolist() == pytest.approx([-(0.5**0.5)] * 3 + [float("inf")])
    # One more to the right turns the anchor there; what points up is then the most distinctive.
    keys = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).view(1, 1, 1, 4, 2)
    scores = KeyDiff(KeyDiffOptions()).score(View(keys, torch.tensor([0, 1, 2, 3]).view(1, 1, 1, 4)))
    assert scores.flatten().tolist()[:3] == pytest.approx([-3 / 10**0.5, -3 / 10**0.5, -1 / 10**0.5])


def test_against_the_formula_written_out():
    """Per layer, row and head: anchor = mean of the unit keys, score = -cosine; empty slots left out."""
    torch.manual_seed(0)
    keys = torch.randn(2, 3, 2, 7, 4, dtype=torch.float64)
    positions = torch.stack([torch.randperm(7) for _ in range(12)]).view(2, 3, 2, 7)
    positions[:, 1, :, 4:] = -1
    found = KeyDiff(KeyDiffOptions()).score(View(keys, positions))
    for layer in range(2):
        for row in range(3):
            for head in range(2):
                held = [slot for slot in range(7) if positions[layer, row, head, slot] >= 0]
                inside = keys[layer, row, head, held]
                anchor = torch.stack([key / key.norm() for key in inside]).mean(0)
                expected = -torch.cosine_similarity(inside, anchor.expand_as(inside), dim=-1)
                newest = int(positions[layer, row, head, held].argmax())
                expected[newest] = float("inf")
                assert torch.allclose(found[layer, row, head, held], expected, atol=1e-12)
