"""Dry runs on models without their weights."""

from __future__ import annotations

import json
import subprocess
import sys

from pte_cli.config import load_config


def pte(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "pte_cli", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_preset_shows_what_a_run_would_hold(tmp_path):
    """Qwen2.5-3B: q, k, v, o, gate, up, down have 4,096, 2,304, 2,304, 4,096, 13,056 (three times) in + out."""
    arguments = ["--model", "preset:qwen2.5-3b", "--budget", "1000", "--rank", "16", "--set", "model.dtype=bfloat16"]
    done = pte("train", *arguments, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)["sizes"]
    assert sizes["parameters"]["base, frozen"] == 3_085_938_688
    assert sizes["parameters"]["LoRA, trained"] == 16 * 36 * (2 * 4096 + 2 * 2304 + 3 * 13_056)
    # Global tokens 32 x 2,048; w_q 36 x 16 x 2,048; w_k and w_v 36 x 16 x 256; w_g 36 x 16 x 32.
    assert sizes["parameters"]["encoder pte, trained"] == 32 * 2048 + 36 * 16 * (2048 + 2 * 256 + 32)
    assert sizes["bytes"]["base in bfloat16"] == 2 * 3_085_938_688
    assert sizes["bytes"]["cache per sequence at budget 1000"] == 1000 * (36_864 + 8)
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_the_same(tmp_path):
    done = pte("train", "--model", "preset:qwen2.5-7b", "--encoder", "none", "--dry-run", cwd=tmp_path)
    assert "7,615,616,512" in done.stdout
    assert "cache per token" in done.stdout


def test_a_preset_can_be_neither_trained_nor_evaluated(tmp_path):
    for command in ("train", "eval"):
        done = pte(command, "--model", "preset:qwen2.5-3b", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == (
            "error: model.name = 'preset:qwen2.5-3b': a preset has no weights, it is for --dry-run; to train, use "
            "--model Qwen/Qwen2.5-3B or a folder with its safetensors\n"
        )
        assert list(tmp_path.iterdir()) == []


def test_flags_reach_the_settings(tmp_path):
    done = pte("train", "--trust-remote-code", "--gradient-checkpointing", "--dry-run", "--json", cwd=tmp_path)
    config = json.loads(done.stdout)["config"]
    assert config["model"]["trust_remote_code"] is True
    assert config["train"]["gradient_checkpointing"] is True
    defaults = load_config(env={})
    assert defaults.model.trust_remote_code is defaults.train.gradient_checkpointing is False
