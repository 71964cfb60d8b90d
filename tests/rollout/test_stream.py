"""Sequences as they end and tokens as they come: the same as `generate` gives."""

from __future__ import annotations

import pytest
import torch
from helpers import adapted, policy, prompts

from pte_cli.errors import UsageError
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling

LENGTHS = [5, 9, 12, 3, 14]
SAMPLING = {"temperature": 1.0, "max_new_tokens": 40, "end_ids": (1, 2, 3)}


def engine(model, rows=2, **sampling):
    return RolloutEngine(model, policy("sliding"), Budget(20, 0.25), Sampling(**{**SAMPLING, **sampling}), batch=rows)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_come_in_order_and_are_those_of_the_traces(temperature):
    model = adapted("pte")
    expected = engine(model, temperature=temperature).generate(prompts(LENGTHS), seed=3)
    told: dict[int, list[int]] = {}
    streamed = engine(model, temperature=temperature).stream(
        prompts(LENGTHS), 3, on_token=lambda i, token: told.setdefault(i, []).append(token)
    )
    for i, trace in streamed:
        assert trace.completion == expected[i].completion == tuple(told[i])
        assert torch.equal(trace.logprobs, expected[i].logprobs)
    assert told.keys() == set(range(len(LENGTHS)))
    assert any(trace.finish == "stop" for trace in expected) or temperature == 0


def test_tokens_come_while_the_sequence_is_under_way(monkeypatch):
    model = adapted("none")
    passes, told = [], []
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda *arguments: passes.append(1) or hidden(*arguments))
    stream = engine(model, rows=1, end_ids=()).stream([prompts([5])[0]], on_token=lambda *_: told.append(len(passes)))
    list(stream)
    # The first token is known after the prompt's pass and told with the second; from there on, one a pass.
    assert told == [2, *range(2, 41)]


def test_a_sequence_is_given_out_before_the_others_end():
    stream = engine(adapted("none"), rows=2).stream(prompts(LENGTHS), 3)
    first, _ = next(stream)
    rest = [i for i, _ in stream]
    assert sorted([first, *rest]) == list(range(len(LENGTHS)))


def test_a_closed_stream_leaves_the_model_as_it_was():
    model = adapted("none")
    before = model.causal.config._attn_implementation
    model.model.train()
    stream = engine(model).stream(prompts(LENGTHS))
    next(stream)
    assert model.causal.config._attn_implementation != before
    assert not model.model.training
    stream.close()
    assert model.causal.config._attn_implementation == before
    assert model.model.training


def test_gradients_are_off_inside_and_on_outside():
    for _ in engine(adapted("none")).stream(prompts(LENGTHS)):
        assert torch.is_grad_enabled()


def test_a_prompts_random_numbers_follow_its_stream_not_its_place():
    model, asked = adapted("none"), prompts(LENGTHS)
    streams = [70, 60, 50, 40, 30]
    expected = dict(engine(model, rows=5).stream(asked, 1, streams=streams))
    turned = dict(engine(model, rows=2).stream(asked[::-1], 1, streams=streams[::-1]))
    assert [turned[4 - i].completion for i in range(5)] == [expected[i].completion for i in range(5)]
    same = [trace.completion for _, trace in sorted(engine(model).stream([asked[0]] * 3, 1, streams=[7, 8, 7]))]
    assert same[0] == same[2] != same[1]


def test_a_prompt_that_does_not_fit_stops_it_before_the_first():
    with pytest.raises(UsageError, match="a prompt of 18 tokens leaves 2 for thinking; use at least 22"):
        next(engine(adapted("none")).stream(prompts([5, 18])))
