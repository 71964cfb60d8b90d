"""Compiled decoding steps: the recorded graph is the step, whatever changes between two sessions.

Most run the recorded graph as it is, which takes no compiler; the slow ones compile it.
"""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, NOISE, adapted, policy, prompts
from test_gap import ByHead, ByLayer, largest_gap

from pte_cli.checks import check_config
from pte_cli.config import load_config
from pte_cli.errors import UsageError
from pte_cli.model.adapter import PteLinear
from pte_cli.rollout import compiled as module
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.compiled import CompiledSteps, check_compilable
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import prepare
from pte_cli.rollout.sampling import Sampling

RULES = {
    "full": policy("full"),
    "sliding": policy("sliding"),
    "sink": policy("sink"),
    "attention": policy("importance"),
    "window": policy("importance", score="window"),
    "head": ByHead(),
    "layer": ByLayer(),
}


@pytest.fixture
def as_recorded(monkeypatch):
    monkeypatch.setattr(module, "build", lambda graph, inputs: graph)


def compiling(*arguments, **more) -> BoundedModel:
    model = adapted(*arguments, **more)
    model.compiled = CompiledSteps()
    return model


def eager(model: BoundedModel) -> BoundedModel:
    return BoundedModel(model.model)


def rollout(model, rule, budget=24, **sampling):
    """Rows of different lengths, one more than fit at once."""
    settings = Sampling(max_new_tokens=30, end_ids=(1, 3), vocab=60, **sampling)
    return RolloutEngine(model, rule, Budget(budget), settings, batch=3).generate(prompts([5, 12, 3, 14]), seed=3)


def assert_same(one, other):
    assert [t.completion for t in one] == [t.completion for t in other]
    assert [len(t.evictions) for t in one] == [len(t.evictions) for t in other]
    torch.testing.assert_close([t.logprobs for t in one], [t.logprobs for t in other])


@pytest.mark.parametrize(
    ("rule", "encoder"),
    [(rule, "pte") for rule in RULES] + [("sliding", "none"), ("window", "none"), ("sliding", "ttt"), ("head", "ttt")],
)
def test_gap(as_recorded, rule, encoder):
    model = compiling(encoder, dtype=torch.float64)
    traces = rollout(model, RULES[rule])
    assert largest_gap(model, RULES[rule], traces) <= 1e-10
    assert len(model.compiled.recorded) == 1
    assert_same(traces, rollout(eager(model), RULES[rule]))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_gap_of_every_family(as_recorded, family):
    model = compiling("pte", family=family)
    traces = rollout(model, RULES["sliding"])
    assert largest_gap(model, RULES["sliding"], traces) <= NOISE


def test_weights_that_learned_since_are_read(as_recorded):
    model = compiling("pte", dtype=torch.float64)
    first = rollout(model, RULES["sliding"])
    with torch.no_grad():
        for parameter in model.model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    second = rollout(model, RULES["sliding"])
    assert len(model.compiled.recorded) == 1
    assert [t.completion for t in first] != [t.completion for t in second]
    assert_same(second, rollout(eager(model), RULES["sliding"]))


def test_other_sizes_and_scales_get_a_graph_of_their_own(as_recorded):
    model = compiling("pte", dtype=torch.float64)
    rollout(model, RULES["sliding"])
    rollout(model, RULES["sliding"], budget=26)
    assert len(model.compiled.recorded) == 2
    for layer in model.model.modules():
        if isinstance(layer, PteLinear):
            layer.scaling = dict.fromkeys(layer.scaling, 0.5)
    scaled = rollout(model, RULES["sliding"])
    assert len(model.compiled.recorded) == 3
    assert_same(scaled, rollout(eager(model), RULES["sliding"]))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}], ids=str)
def test_sampling(as_recorded, sampling):
    model = compiling("pte", dtype=torch.float64)
    assert_same(
        rollout(model, RULES["sliding"], **sampling),
        rollout(eager(model), RULES["sliding"], **sampling),
    )


def test_a_model_of_unknown_layers_is_refused():
    model = compiling("pte")
    model.backbone.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="sampling.compile: the layers of Qwen2Model"):
        check_compilable(model)
    with pytest.raises(UsageError, match="sampling.compile: the layers of Qwen2Model"):
        rollout(model, RULES["sliding"])


def test_what_torch_cant_compile_is_one_line(monkeypatch):
    def failing(graph, inputs):
        raise RuntimeError("no header\nand more")

    monkeypatch.setattr(module, "build", failing)
    with pytest.raises(UsageError, match=r"decoding step here \(no header\); leave sampling.compile off"):
        rollout(compiling("pte"), RULES["sliding"])


def test_settings_that_cant_be_compiled_are_refused_before_a_model_is_loaded(monkeypatch):
    chosen = {"sampling.compile": True}
    assert check_config(load_config(env={}, flags=chosen)).sampling.compile
    with pytest.raises(UsageError, match="not with model.quantization = '4bit'"):
        check_config(load_config(env={}, flags={**chosen, "model.quantization": "4bit"}), dry_run=True)
    for name, value in (("device", "mps"), ("dtype", "float64")):
        with pytest.raises(UsageError, match=f"not with model.{name} = '{value}'"):
            check_config(load_config(env={}, flags={**chosen, f"model.{name}": value}))
    with pytest.raises(UsageError, match="sampling.compile: not with FSDP"):
        prepare(load_config(env={}, flags=chosen), shards=object())
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match="needs a C\\+\\+ compiler and there is no 'no-such-compiler'"):
        check_config(load_config(env={}, flags=chosen))


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "rule"), [("pte", "sliding"), ("none", "head"), ("ttt", "window")])
def test_gap_as_machine_code(encoder, rule):
    model = compiling(encoder)
    traces = rollout(model, RULES[rule])
    assert largest_gap(model, RULES[rule], traces) <= NOISE
    assert_same(traces, rollout(eager(model), RULES[rule]))
