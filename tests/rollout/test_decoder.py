"""The decoder stack as plain operations: the same numbers as the model's own modules, and when it steps aside."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, adapted, policy, prompts

from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.decoder import Decoder
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


def traces_of(model, **sampling):
    settings = {"max_new_tokens": 40, "end_ids": (1,), **sampling}
    return RolloutEngine(model, policy("sliding"), Budget(24, 0.25), Sampling(**settings), batch=3).generate(
        prompts([5, 9, 12, 3]), seed=4
    )


def through_modules(monkeypatch):
    monkeypatch.setattr(Decoder, "of", classmethod(lambda *_: None))


def gradients(model, traces):
    logprobs = replay(model, traces, policy("sliding"), loss=lambda scored: scored.logprobs.sum() / 100)
    found = {name: p.grad for name, p in model.model.named_parameters() if p.requires_grad}
    model.model.zero_grad()
    return logprobs, found


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_gradients_are_those_of_the_modules(family, monkeypatch):
    """Cores at work, evictions, several rows; the tokens of one path scored by the other."""
    model = adapted("pte", family=family, dtype=torch.float64)
    traces = traces_of(model)
    assert max(len(trace.evictions) for trace in traces) >= 4
    ours, our_gradients = gradients(model, traces)
    through_modules(monkeypatch)
    theirs, their_gradients = gradients(model, traces)
    assert (ours - theirs).abs().max() <= 1e-10
    for name, gradient in their_gradients.items():
        assert (our_gradients[name] - gradient).abs().max() <= 1e-9 * max(1, gradient.abs().max()), name
    again = traces_of(model)
    assert [trace.completion for trace in again] == [trace.completion for trace in traces]


def test_float32_norms_are_those_of_the_modules(monkeypatch):
    """In float32 the norms are written out, too."""
    for family in ("qwen3", "gemma3"):
        model = adapted("pte", family=family)
        traces = traces_of(model)
        ours = replay(model, traces, policy("sliding"))
        with monkeypatch.context() as inner:
            through_modules(inner)
            assert (ours - replay(model, traces, policy("sliding"))).abs().max() <= 2e-5


def test_the_gap_of_a_model_that_goes_through_its_modules(monkeypatch):
    through_modules(monkeypatch)
    model = adapted("pte", dtype=torch.float64)
    traces = traces_of(model)
    scored = replay(model, traces, policy("sliding"))
    for row, trace in zip(scored, traces, strict=True):
        assert (row[: len(trace.completion)] - trace.logprobs).abs().max() <= 1e-10


def test_known_models_are_taken_and_others_left_to_their_modules():
    model = adapted("pte")
    with model.session():
        assert model.decoder is not None
    assert model.decoder is None
    hook = model.backbone.layers[1].mlp.register_forward_hook(lambda *_: None)
    with model.session():
        assert model.decoder is None
    hook.remove()

    class OtherLayer(type(model.backbone.layers[0])):
        """A subclass may compute anything."""

    model.backbone.layers[0].__class__ = OtherLayer
    with model.session():
        assert model.decoder is None


def test_a_second_adapter_that_is_not_active_changes_nothing():
    model = adapted("none")
    before = [trace.completion for trace in traces_of(model)]
    model.model.add_adapter("other", model.model.peft_config["default"])
    assert [trace.completion for trace in traces_of(model)] == before
    model.model.base_model.set_adapter(["default", "other"])
    with model.session():
        assert model.decoder is None


def test_the_reference_is_the_model_without_adapter():
    model = adapted("pte", dtype=torch.float64)
    traces = traces_of(model)
    plain = BoundedModel(adapted("none", dtype=torch.float64, zero=True).model)
    with model.adapter_off() as off:
        assert (replay(off, traces, policy("sliding")) - replay(plain, traces, policy("sliding"))).abs().max() <= 1e-10


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_equal_prompts_are_read_once(rows, monkeypatch):
    """A group of five completions of one prompt: one pass over the prompt, however the rows start; same tokens."""
    model = adapted("pte", dtype=torch.float64)
    read = []
    hidden = model.hidden

    def watch(ids, *more):
        if ids.shape[1] > 1:
            read.append(ids.shape)
        return hidden(ids, *more)

    monkeypatch.setattr(model, "hidden", watch)
    [prompt] = prompts([9])
    sampling = Sampling(max_new_tokens=30, end_ids=(1, 2, 3))
    engine = RolloutEngine(model, policy("sliding"), Budget(24, 0.25), sampling, batch=rows)
    group = engine.generate([prompt] * 5, seed=2)
    assert read == [(1, 9)]
    assert len({trace.completion for trace in group}) > 1
    for i, trace in enumerate(group):
        [(_, alone)] = engine.stream([prompt], 2, streams=[i])
        assert trace.completion == alone.completion
        assert (trace.logprobs - alone.logprobs).abs().max() <= 1e-10
