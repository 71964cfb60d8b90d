"""Loading, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import causal_lm
from pte_plugins.tasks.recall import WORDS
from safetensors.torch import load_file, save_file

from pte_cli.config import ModelConfig
from pte_cli.errors import UsageError
from pte_cli.model.load import choose_device, load_model
from pte_cli.model.source import TINY
from pte_cli.tasks.codec import Codec, end_ids


def settings(name="tiny", **more):
    return ModelConfig(name=str(name), device="cpu", **more)


def saved(folder, family="qwen2", **more):
    """A model's folder with the built-in tokenizer."""
    causal_lm(family, **more).save_pretrained(folder)
    for file in TINY.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_the_built_in_model_needs_no_network():
    model, tokenizer = load_model(settings())
    assert model.config.model_type == "qwen2"
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 1.5e6
    assert not any(p.requires_grad for p in model.parameters())
    ids = tokenizer(" ".join(WORDS))["input_ids"]
    assert len(set(ids)) == len(WORDS)
    assert Codec(tokenizer, end_ids(model, tokenizer), WORDS).text([*ids, 1]) == " ".join(WORDS)


def test_dtype_follows_the_setting():
    assert load_model(settings(dtype="bfloat16"))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["gemma3", "llama3", "smollm3"])
def test_a_folder_gives_the_saved_model(tmp_path, family):
    model, _ = load_model(settings(saved(tmp_path, family)))
    ids = torch.arange(2, 12)[None]
    assert torch.equal(model(ids).logits, causal_lm(family)(ids).logits)
    assert not model.training


def test_a_model_that_brings_its_own_code_runs_it_only_when_told_to(tmp_path):
    """The code below is a Llama under another name; the marker file shows whether it was imported."""
    saved(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "llama-of-its-own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "imported"
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(marker)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'llama-of-its-own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(UsageError, match="runs code from its own repository.*--trust-remote-code"):
        load_model(settings(tmp_path))
    assert not marker.exists()
    with pytest.raises(UsageError, match="FSDP can't share out layers of a model's own code"):
        load_model(settings(tmp_path, trust_remote_code=True), shards=object())
    model, _ = load_model(settings(tmp_path, trust_remote_code=True))
    assert marker.exists()
    assert type(model).__name__ == "OwnForCausalLM"
    ids = torch.arange(2, 12)[None]
    assert torch.equal(model(ids).logits, causal_lm("llama")(ids).logits)


def test_code_that_computes_its_own_attention_is_refused(tmp_path):
    saved(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "llama-alone",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'llama-alone'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
        "    _supports_attention_backend = False\n"
    )
    with pytest.raises(UsageError, match="OwnForCausalLM computes its attention itself"):
        load_model(settings(tmp_path, trust_remote_code=True))


def test_a_preset_has_no_weights():
    with pytest.raises(UsageError, match="a preset has no weights, it is for --dry-run"):
        load_model(settings("preset:qwen2.5-3b"))


def test_broken_weights_are_one_line(tmp_path):
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UsageError) as caught:
        load_model(settings(tmp_path))
    assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_named_not_made_up(tmp_path):
    saved(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lack weights, for example 'model.layers.1.mlp.up_proj.weight'"):
        load_model(settings(tmp_path))


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"model.device = 'nonsense'"):
        choose_device("nonsense")
