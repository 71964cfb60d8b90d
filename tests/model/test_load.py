"""Loading, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import causal_lm
from pte_plugins.tasks.recall import WORDS

from pte_cli.errors import UsageError
from pte_cli.model.load import load_model
from pte_cli.tasks.codec import Codec, end_ids


def test_the_built_in_model_needs_no_network():
    model, tokenizer = load_model("tiny", "float32", "cpu")
    assert model.config.model_type == "qwen2"
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 1.5e6
    assert not any(p.requires_grad for p in model.parameters())
    ids = tokenizer(" ".join(WORDS))["input_ids"]
    assert len(set(ids)) == len(WORDS)
    assert Codec(tokenizer, end_ids(model, tokenizer), WORDS).text([*ids, 1]) == " ".join(WORDS)


def test_dtype_follows_the_setting():
    assert load_model("tiny", "bfloat16", "cpu")[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "neither 'tiny' nor a folder"),
        (
            lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"})),
            "'gpt2' is not supported",
        ),
        (lambda folder: causal_lm().config.save_pretrained(folder), "no .*safetensors"),
    ],
)
def test_what_can_not_be_loaded_is_named(tmp_path, prepare, message):
    prepare(tmp_path)
    with pytest.raises(UsageError, match=message):
        load_model(str(tmp_path), "float32", "cpu")


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"model.device = 'nonsense'"):
        load_model("tiny", "float32", "nonsense")
