"""Adding rewards up, and blaming the right row."""

from __future__ import annotations

import math

import pytest
import torch

from pte_cli.errors import PteError, UsageError
from pte_cli.tasks.rewards import Batch, NamedReward, combine, text_of


def batch(n=3, **columns):
    return Batch(["p"] * n, [f"c{i}" for i in range(n)], [[1] * (i + 1) for i in range(n)], columns)


def constant(name, values, weight=1.0):
    by_completion = {f"c{i}": value for i, value in enumerate(values)}
    return NamedReward(name, lambda prompts, completions, ids, **_: [by_completion[c] for c in completions], weight)


def test_weighted_sum_over_what_is_there():
    found = combine([constant("a", [1, None, None]), constant("b", [0.5, 2, None], weight=-2.0)], batch())
    assert found.totals[:2] == [0.0, -4.0]
    assert math.isnan(found.totals[2])
    assert found.missing == (2,)
    assert found.by_name == {"a": [1.0, None, None], "b": [0.5, 2.0, None]}


def test_columns_reach_the_reward():
    def exact(prompts, completions, completion_ids, answer, **_):
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    assert combine([NamedReward("exact", exact)], batch(answer=["c0", "x", "c2"], other=[1, 2, 3])).totals == [1, 0, 1]


def test_tensors_are_numbers():
    assert combine([constant("a", list(torch.tensor([1.0, 2.0, 3.0])))], batch()).totals == [1, 2, 3]


def test_an_exception_names_reward_and_row():
    def fussy(prompts, completions, completion_ids, **_):
        return [1 / (c != "c1") for c in completions]

    with pytest.raises(PteError, match=r"reward 'fussy' failed at row 1 of the batch: ZeroDivisionError"):
        combine([NamedReward("fussy", fussy)], batch())
    with pytest.raises(PteError, match=r"row 'gsm/7' \(number 1 of the batch\)"):
        combine([NamedReward("fussy", fussy)], batch(id=["gsm/6", "gsm/7", "gsm/8"]))


def test_an_exception_of_the_batch_as_a_whole():
    def crowded(prompts, completions, completion_ids, **_):
        if len(completions) > 1:
            raise RuntimeError("too many")
        return [0]

    with pytest.raises(PteError, match=r"'crowded' failed at a batch of 3 \(each row alone is fine\): RuntimeError"):
        combine([NamedReward("crowded", crowded)], batch())


def test_a_reward_that_explains_itself_is_not_wrapped():
    def needy(prompts, completions, completion_ids, **_):
        raise UsageError("set the option column")

    with pytest.raises(UsageError, match="^set the option column$"):
        combine([NamedReward("needy", needy)], batch())


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", [1], {}])
def test_what_is_no_number(value):
    with pytest.raises(PteError, match=r"'odd' returned .* for row 1 of the batch"):
        combine([constant("odd", [0, value, 0])], batch())


def test_wrong_length():
    reward = NamedReward("short", lambda *_, **__: [1.0])
    with pytest.raises(PteError, match="'short' returned 1 values for 3 completions"):
        combine([reward], batch())
    with pytest.raises(PteError, match="'nothing' failed at"):
        combine([NamedReward("nothing", lambda *_, **__: None)], batch())


def test_text_of_chat_messages():
    assert text_of([{"role": "user", "content": "?"}, {"role": "assistant", "content": "5"}]) == "5"
    assert text_of("5") == "5"
