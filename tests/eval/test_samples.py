"""Held-out completions token by token: what left the cache when, and where the answer begins."""

from __future__ import annotations

import pytest
import torch

from pte_cli.eval.samples import chosen, departures
from pte_cli.rollout.trace import Eviction, Trace
from pte_cli.tasks.grading.extract import answer_start


def test_a_token_leaves_a_share_of_layers_and_heads():
    # Two layers, two heads. After 3 thinking tokens position 2 leaves everywhere but in layer 1, head 1, which drops
    # position 4; after 5 that head drops position 2, and the others position 3.
    first = torch.tensor([[[2], [2]], [[2], [4]]], dtype=torch.int32)
    second = torch.tensor([[[3], [3]], [[3], [2]]], dtype=torch.int32)
    trace = Trace((0, 1), (10, 11, 12, 13, 14, 15), budget=4, evictions=(Eviction(3, 1, first), Eviction(5, 1, second)))
    assert departures(trace) == [[], [], [(3, 0.75), (5, 0.25)], [(5, 0.75)], [(3, 0.25)], [], [], []]


def test_a_token_that_leaves_everywhere_leaves_whole():
    evictions = (Eviction(2, 2, torch.tensor([[[1, 2]]], dtype=torch.int32)),)
    assert departures(Trace((0,), (5, 6, 7, 8), evictions=evictions)) == [[], [(2, 1.0)], [(2, 1.0)], [], []]
    assert departures(Trace((0,), (5, 6))) == [[], [], []]


def test_the_first_three_of_each_kind_are_recorded():
    right = [True, True, True, True, None, False, True, False, False, False]
    assert chosen(right) == [0, 1, 2, 4, 5, 7, 8]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <think>2</think>the sum", "the sum"),
        (r"so \boxed{1} no, \boxed{2}.", r"\boxed{2}."),
        (r"\boxed{1}</think>\n4", r"\n4"),
        ("no answer at all", None),
    ],
)
def test_where_an_answer_begins(text, answer):
    start = answer_start(text)
    assert (None if start is None else text[start:]) == answer
