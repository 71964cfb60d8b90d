"""The adapter as a PEFT method."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from helpers import adapted, causal_lm, policy, prompts
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pte_cli.errors import UsageError
from pte_cli.model.adapter import PteConfig, add_adapter, cores_set
from pte_cli.model.source import TINY
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


def test_output_is_the_formula_for_every_row():
    """y = W x + scale * B (I + M) A x, with a matrix of its own for each row."""
    model = adapted("pte", dtype=torch.float64)
    layer = model.causal.model.layers[1].mlp.up_proj
    x, core = torch.randn(3, 4, 32, dtype=torch.float64), torch.randn(3, 8, 8, dtype=torch.float64)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with cores_set(model.peft, [None, core, None]):
        ours = layer(x)
    for row in range(3):
        update = b @ (torch.eye(8, dtype=torch.float64) + core[row]) @ a
        expected = x[row] @ layer.base_layer.weight.T + x[row] @ update.T
        assert torch.allclose(ours[row], expected)
    plain = x @ (layer.base_layer.weight + b @ a).T
    assert torch.allclose(layer(x), plain)


def test_encoder_by_hand():
    """S' = ((W_Qa q_g)(W_Ka K_e)^T)(W_Va V_e), written out with loops; padding does not count."""
    from pte_cli.api import Evicted

    encoder = adapted("pte", dtype=torch.float64, options={"normalize": "frobenius"}).encoder
    keys, values = torch.randn(2, 3, 1, 2, 5, 8, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False]])
    start = {"S": torch.randn(3, 1, 8, 8, dtype=torch.float64)}
    after = encoder.absorb(start, Evicted(keys, values, torch.zeros(1, 1, 1, 5, dtype=torch.int64), mask))["S"]
    for layer in range(3):
        queries = encoder.global_tokens @ encoder.w_q[layer].T
        new = torch.zeros(8, 8, dtype=torch.float64)
        for n in range(4):
            key = encoder.w_k[layer] @ torch.cat([keys[layer, 0, head, n] for head in range(2)])
            value = encoder.w_v[layer] @ torch.cat([values[layer, 0, head, n] for head in range(2)])
            new += torch.outer(queries @ key, value)
        total = start["S"][layer, 0] + new
        assert torch.allclose(after[layer, 0], total * 8**0.5 / total.norm(), atol=1e-6)
    assert torch.equal(encoder.core({"S": after}, 2), after[2].mT)


def test_only_adapter_and_encoder_train():
    names = [name for name, p in adapted("pte").model.named_parameters() if p.requires_grad]
    assert all("lora_" in name or "pte_encoder" in name for name in names)
    assert sum("pte_encoder" in name for name in names) == 4
    assert sum("lora_" in name for name in names) == 3 * 7 * 2


@pytest.mark.parametrize("options", [{}, {"initial": "global", "global_tokens": 5}], ids=str)
def test_save_and_load_give_the_same_log_probabilities_under_the_same_trace(tmp_path, options):
    model = adapted("pte", options=options)
    traces = RolloutEngine(model, policy("sliding"), Budget(20, 0.25), Sampling(max_new_tokens=30)).generate(
        prompts([5, 9])
    )
    model.model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(causal_lm(), tmp_path)
    assert isinstance(loaded.peft_config["default"], PteConfig)
    assert loaded.peft_config["default"].encoder == "pte"
    assert loaded.peft_config["default"].encoder_options == {"global_tokens": 8, **options}
    again = replay(BoundedModel(loaded), traces, policy("sliding"))
    assert torch.equal(again, replay(model, traces, policy("sliding")))


@pytest.mark.parametrize("family", ["gemma3", "llama3", "smollm3"])
def test_with_tied_embeddings_the_saved_adapter_gives_the_same_logits_and_holds_no_embedding(tmp_path, family):
    model = adapted("pte", family=family)
    assert model.causal.config.tie_word_embeddings
    traces = RolloutEngine(model, policy("sliding"), Budget(20, 0.25), Sampling(max_new_tokens=30)).generate(
        prompts([5, 9])
    )
    model.model.save_pretrained(tmp_path)
    assert not any("embed" in key or "lm_head" in key for key in load_file(tmp_path / "adapter_model.safetensors"))
    base = causal_lm(family)
    loaded = BoundedModel(PeftModel.from_pretrained(base, tmp_path))
    assert loaded.head.weight is base.get_input_embeddings().weight
    assert torch.equal(
        replay(loaded, traces, policy("sliding")),
        replay(model, traces, policy("sliding")),
    )


@pytest.mark.parametrize("encoder", ["none", "pte", "ttt"])
def test_with_tied_embeddings_a_round_trip_gives_the_same_logits_under_the_same_trace(tmp_path, encoder):
    """On the built-in model, whose output layer is its embedding."""
    base = AutoModelForCausalLM.from_pretrained(TINY)
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    before = base.get_input_embeddings().weight.clone()
    saved = add_adapter(base, encoder=encoder, rank=8)
    for name, parameter in saved.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model, rule = BoundedModel(saved), policy("sliding")
    traces = RolloutEngine(model, rule, Budget(20, 0.25), Sampling(max_new_tokens=30, vocab=48)).generate(
        [[3, 24, 22, 2], [3, 25, 22, 23, 2, 10]]
    )
    assert all(len(trace.evictions) >= 3 for trace in traces)
    saved.save_pretrained(tmp_path)
    assert not [name for name in load_file(tmp_path / "adapter_model.safetensors") if "embed" in name or "head" in name]
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINY), tmp_path)
    head, embedding = loaded.get_output_embeddings().weight, loaded.get_input_embeddings().weight
    assert head is embedding
    assert embedding.equal(before)
    # Log-probabilities of every token of the vocabulary are the logits up to a constant; these are the traces' own.
    assert torch.equal(replay(BoundedModel(loaded), traces, rule), replay(model, traces, rule))
    ids = torch.tensor([traces[0].prompt + traces[0].completion])
    assert torch.equal(loaded(ids).logits, saved(ids).logits)


def test_saved_under_another_adapter_name_it_loads_too(tmp_path):
    model = adapted("pte").model
    model.save_pretrained(tmp_path)
    keys = load_file(tmp_path / "adapter_model.safetensors")
    assert "base_model.pte_encoder.w_k" in keys
    loaded = PeftModel.from_pretrained(causal_lm(), tmp_path, adapter_name="mine")
    assert torch.equal(loaded.base_model.pte_encoder["mine"].w_k, model.base_model.pte_encoder["default"].w_k)


@pytest.mark.parametrize("first", ["import pte_cli, peft", "import peft, pte_cli"])
def test_from_pretrained_works_once_pte_cli_is_imported(tmp_path, first):
    adapted("none").model.save_pretrained(tmp_path)
    code = f"{first}\nprint(type(peft.PeftConfig.from_pretrained({str(tmp_path)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "PteConfig"


def test_a_zero_adapter_changes_nothing():
    ids = torch.tensor(prompts([9]))
    assert torch.equal(adapted("pte", zero=True).model(ids).logits, causal_lm()(ids).logits)


def test_what_is_no_linear_of_a_decoder_layer_is_refused():
    with pytest.raises(UsageError, match="lm_head"):
        add_adapter(causal_lm(), encoder="none", rank=4, target_modules=("lm_head",))


def test_what_depends_on_evictions_can_not_be_merged_plain_lora_can():
    with pytest.raises(ValueError, match="encoder 'pte' its weights depend on what was evicted"):
        adapted("pte").model.merge_and_unload()
    ids = torch.tensor(prompts([9]))
    model = adapted("none", dtype=torch.float64).model
    expected = model(ids).logits
    assert torch.allclose(model.merge_and_unload()(ids).logits, expected, atol=1e-6)


def test_a_second_active_adapter_and_a_core_do_not_go_together():
    model = adapted("pte")
    layer = model.causal.model.layers[0].mlp.up_proj
    model.model.add_adapter("other", model.model.peft_config["default"])
    model.model.base_model.set_adapter(["default", "other"])
    with (
        cores_set(model.peft, [torch.zeros(1, 8, 8), None, None]),
        pytest.raises(ValueError, match="exactly one active"),
    ):
        layer(torch.zeros(1, 2, 32))


@pytest.mark.parametrize(
    ("dtype", "trained"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_adapter_and_encoder_are_at_least_float32_and_as_precise_as_the_model(dtype, trained):
    model = add_adapter(causal_lm(dtype=dtype), encoder="pte", rank=4)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {trained}


def test_a_bfloat16_model_runs_and_its_gap_is_bfloat16s():
    model = BoundedModel(add_adapter(causal_lm(dtype=torch.bfloat16), encoder="pte", rank=4))
    traces = RolloutEngine(model, policy("sliding"), Budget(20, 0.25), Sampling(max_new_tokens=30)).generate(
        prompts([5, 9])
    )
    scored = replay(model, traces, policy("sliding"), loss=lambda part: -part.logprobs.mean())
    gap = (scored - torch.stack([trace.logprobs for trace in traces])).abs()
    assert gap.mean() < 0.02
    assert all(p.grad.isfinite().all() for p in model.model.parameters() if p.requires_grad)
