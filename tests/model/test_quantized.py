"""4-bit bases against the same model with its weights unpacked once."""

from __future__ import annotations

import pytest
import torch
from helpers import causal_lm, policy, prompts
from peft import PeftModel

from pte_cli.config import ModelConfig
from pte_cli.model.adapter import add_adapter
from pte_cli.model.load import load_model
from pte_cli.model.source import TINY
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay

bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="the package bitsandbytes is not installed (pip install 'pte-cli[4bit]')"
)


def four_bit(folder):
    return load_model(ModelConfig(name=str(folder), device="cpu", quantization="4bit"))[0]


def unpacked(base):
    """The same model with plain linear layers."""
    plain = causal_lm("llama", hidden=64)
    weights = {
        name: bitsandbytes.functional.dequantize_4bit(p.data, p.quant_state) if hasattr(p, "quant_state") else p.data
        for name, p in base.named_parameters()
    }
    plain.load_state_dict(weights)
    return plain.requires_grad_(False)


def with_adapter(base):
    torch.manual_seed(1)
    model = add_adapter(base, encoder="pte", rank=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return BoundedModel(model)


@pytest.fixture
def folder(tmp_path):
    causal_lm("llama", hidden=64).save_pretrained(tmp_path)
    for file in TINY.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_rollout_replay_and_gradients_are_those_of_the_unpacked_model(folder):
    base = four_bit(folder)
    assert type(base.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    plain = with_adapter(unpacked(base))
    packed = with_adapter(base)
    traces = RolloutEngine(packed, policy("sliding"), Budget(24, 0.25), Sampling(max_new_tokens=50), batch=3).generate(
        prompts([5, 9, 12])
    )
    scores, gradients = [], []
    for model in (packed, plain):
        scores.append(replay(model, traces, policy("sliding"), loss=lambda scored: -scored.logprobs.mean()))
        gradients.append({n: p.grad for n, p in model.model.named_parameters() if p.requires_grad})
    sampled = torch.stack([trace.logprobs for trace in traces])
    assert (scores[0] - sampled).abs().max() <= 1e-4
    assert (scores[0] - scores[1]).abs().max() <= 1e-3
    for name, gradient in gradients[1].items():
        assert (gradients[0][name] - gradient).abs().max() <= 1e-2 * gradient.abs().max() + 1e-6, name


def test_an_adapter_saved_on_a_4_bit_base_loads_on_one(folder, tmp_path):
    model = with_adapter(four_bit(folder))
    model.model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(four_bit(folder), tmp_path / "adapter")
    ids = torch.tensor(prompts([9]))
    assert torch.equal(loaded.eval()(ids).logits, model.model.eval()(ids).logits)


def test_weights_stored_in_4_bits_load_as_they_are(folder, tmp_path):
    base = four_bit(folder)
    base.save_pretrained(tmp_path / "packed")
    for file in TINY.glob("tokenizer*"):
        (tmp_path / "packed" / file.name).write_bytes(file.read_bytes())
    again = load_model(ModelConfig(name=str(tmp_path / "packed"), device="cpu"))[0]
    ids = torch.tensor(prompts([9]))
    assert torch.equal(again(ids).logits, base(ids).logits)
    model = with_adapter(again)
    [trace] = RolloutEngine(model, policy("sliding"), Budget(24, 0.25), Sampling(max_new_tokens=30)).generate(
        prompts([9])
    )
    replay(model, [trace], policy("sliding"), loss=lambda scored: -scored.logprobs.mean())
    assert all(p.grad.abs().max() > 0 for name, p in model.model.named_parameters() if "lora_B" in name)
