"""Exports load where they should and give the logits of the adapted model."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from pte_cli.config import validate
from pte_cli.errors import UsageError
from pte_cli.export.export import export
from pte_cli.model.adapter import add_adapter
from pte_cli.model.source import TINY
from pte_cli.runs import RunDir

RESULT = {
    "steps": 400,
    "before": {"accuracy": 0.12, "low": 0.086, "high": 0.165, "n": 256},
    "after": {"accuracy": 0.5625, "low": 0.501, "high": 0.622, "n": 256},
}


def made(path, encoder, result=RESULT, **settings):
    """A run on the built-in model (whose embeddings are tied) with a random adapter."""
    config = validate({"encoder": {"name": encoder}, "adapter": {"rank": 4, "alpha": 8}, **settings})
    run = RunDir.create(path, config)
    torch.manual_seed(0)
    model = add_adapter(AutoModelForCausalLM.from_pretrained(TINY), encoder=encoder, rank=4, alpha=8)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(run.adapter)
    if result is not None:
        run.status("finished", result=result)
    return config, run, model


IDS = torch.randint(2, 48, (3, 40), generator=torch.Generator().manual_seed(0))


def test_merged_weights_are_plain_and_give_the_same_logits(tmp_path):
    config, run, model = made(tmp_path / "run", "none")
    done = export(config, run, tmp_path / "out")
    assert (done.kind, done.reason) == ("merged", None)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(loaded).__name__ == "Qwen2ForCausalLM"
    with torch.no_grad():
        expected, base = model(IDS).logits, AutoModelForCausalLM.from_pretrained(TINY)(IDS).logits
        found = loaded(IDS).logits
    assert (expected - base).abs().max() > 1
    assert (found - expected).abs().max() <= 1e-4
    # Tied stays tied, and is stored once, untouched.
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    weights, before = load_file(tmp_path / "out" / "model.safetensors"), load_file(TINY / "model.safetensors")
    assert weights.keys() == before.keys()
    assert weights["model.embed_tokens.weight"].equal(before["model.embed_tokens.weight"])
    assert not weights["model.layers.0.self_attn.q_proj.weight"].equal(before["model.layers.0.self_attn.q_proj.weight"])
    ids, its = (PreTrainedTokenizerFast.from_pretrained(f)("? c a 4").input_ids for f in (TINY, tmp_path / "out"))
    assert ids == its
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "run"]


def test_what_can_not_be_merged_is_said_and_the_adapter_exported(tmp_path):
    config, run, model = made(tmp_path / "run", "pte")
    done = export(config, run, tmp_path / "out")
    assert done.kind == "adapter"
    assert done.files == ("README.md", "adapter_config.json", "adapter_model.safetensors", "pte_config.json")
    assert "The encoder 'pte' can't be merged" in done.reason
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in done.reason
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINY), tmp_path / "out")
    with torch.no_grad():
        assert loaded(IDS).logits.equal(model(IDS).logits)
    assert loaded.base_model.pte_encoder["default"].w_k.equal(model.base_model.pte_encoder["default"].w_k)
    assert validate(json.loads((tmp_path / "out" / "pte_config.json").read_text())) == config


def test_the_card_says_what_it_is(tmp_path):
    config, run, _ = made(tmp_path / "run", "pte", evict={"policy": "sink", "n_sink": 4, "budget": 60})
    export(config, run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\n")
    for line in (
        "| base model | tiny |",
        "| encoder | pte |",
        "| eviction policy | sink (n_sink=4) |",
        "| budget | 60 cached tokens per layer and head; 0.25 of the window leaves when full |",
        "| training | SFT, 400 steps of 64, learning rate 0.002 |",
        "- before training: 12.0 % (8.6 to 16.5, 95 %), 256 held-out problems",
        "- after training: 56.2 % (50.1 to 62.2, 95 %), 256 held-out problems",
    ):
        assert line in card
    assert "rank 4, alpha 8" in card


def test_the_cards_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for encoder in ("none", "pte"):
        config, run, _ = made(tmp_path / f"run-{encoder}", encoder)
        export(config, run, tmp_path / encoder)
        code = (tmp_path / encoder / "README.md").read_text().split("```python\n")[1].split("```")[0]
        found: dict = {}
        exec(code, found)
        assert found["model"](IDS).logits.shape == (3, 40, 48)


def test_a_base_on_the_hub_is_named_in_the_front_matter(tmp_path):
    config, run, _ = made(tmp_path / "run", "pte", result=None)
    config = config.model_copy(update={"model": config.model.model_copy(update={"name": "Qwen/Qwen2.5-0.5B"})})
    export(config, run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert '\nbase_model: "Qwen/Qwen2.5-0.5B"\n' in card
    assert 'AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")' in card
    assert "Nothing was measured." in card
    assert "(the run is of unknown state)" in card


def test_the_adapter_knows_its_encoder_whatever_the_settings_say(tmp_path):
    config, run, _ = made(tmp_path / "run", "pte")
    wrong = config.model_copy(update={"encoder": config.encoder.model_copy(update={"name": "none", "options": {}})})
    assert export(wrong, run, tmp_path / "out").kind == "adapter"


@pytest.mark.parametrize("there", ["folder", "file"])
def test_nothing_is_overwritten(tmp_path, there):
    config, run, _ = made(tmp_path / "run", "none")
    out = tmp_path / "out"
    out.mkdir() if there == "folder" else out.write_text("mine")
    with pytest.raises(UsageError, match="is there already; choose a new folder"):
        export(config, run, out)
    with pytest.raises(UsageError, match="is a file, not a folder"):
        export(config, run, run.path / "config.json" / "out")


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    config, run, _ = made(tmp_path / "run", "none")
    (run.adapter / "adapter_model.safetensors").write_bytes(b"cut off")
    with pytest.raises(Exception, match=".*"):
        export(config, run, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]
