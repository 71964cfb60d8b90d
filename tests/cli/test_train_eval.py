"""Training and evaluation through the command line, on the built-in model, small."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

SMALL = [
    "--objective",
    "sft+grpo",
    "--sft-steps",
    "2",
    "--grpo-steps",
    "2",
    "--problems",
    "16",
    "--set",
    "sft.batch=8",
    "--set",
    "grpo.prompts=2",
]


def pte(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "pte_cli", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two SFT and two GRPO steps, and what the command printed as JSON."""
    folder = tmp_path_factory.mktemp("runs")
    done = pte("train", "--encoder", "pte", "--evict", "sliding", "--frac", "0.25", "--beta", "0.04", *SMALL, "--json",
               "--out", "run", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run", json.loads(done.stdout), done.stderr


def test_a_run_holds_what_it_should(trained):
    run, printed, stderr = trained
    assert {p.name for p in run.iterdir()} == {
        "before.json",
        "checkpoints",
        "completions",
        "config.json",
        "env.json",
        "held_out.jsonl",
        "metrics.jsonl",
        "samples.jsonl",
        "status.json",
        "adapter",
    }
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 4)
    assert status["result"] == printed
    env = json.loads((run / "env.json").read_text())
    assert env["packages"]["torch"]
    assert json.loads((run / "config.json").read_text())["evict"]["frac"] == 0.25
    adapter = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert (adapter["peft_type"], adapter["encoder"], adapter["r"]) == ("PTE", "pte", 32)
    assert "grpo 4/4" in stderr


def test_metrics_of_every_step(trained):
    run = trained[0]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["phase"]) for line in lines] == [
        (1, "sft"),
        (2, "sft"),
        (3, "grpo"),
        (4, "grpo"),
    ]
    for line in lines[2:]:
        # The trained model looks things up sharply, which amplifies float32 rounding at single tokens.
        assert line["gap/mean"] <= 1e-6
        assert line["gap/max"] <= 1e-4
        assert line["clip_ratio/region_mean"] == 0
        assert 0 <= line["reward"] <= 1
        assert line["evictions"] > 3
        assert line["kl"] >= 0
    assert all(line["grad_norm"] >= 0 and line["loss"] == line["loss"] for line in lines)


def test_what_was_held_is_counted(trained):
    run, printed, _ = trained
    after = printed["after"]
    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    assert after["adapter_bytes"] == sum(t.numel() * t.element_size() for t in weights.values())
    # S: 4 layers of 32 x 32 float32; keys and values: 4 layers of 64 + 64 float32 a token, and 8 bytes of position.
    assert after["rows"] == 16
    assert after["state_bytes"] == 16 * 4 * 32 * 32 * 4
    assert after["cache_bytes"] == 16 * 48 * (4 * 128 * 4 + 8)
    steps = [json.loads(line)["peak_bytes"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 < steps[0] <= steps[-1] <= printed["peak_bytes"]


def test_what_became_of_each_problem_is_recorded(trained):
    run, printed, _ = trained
    problems = [json.loads(line) for line in (run / "held_out.jsonl").read_text().splitlines()]
    assert [p["problem"] for p in problems] == list(range(16))
    assert sum(p["right"] for p in problems) / 16 == printed["after"]["accuracy"]
    assert sum(p["length"] for p in problems) / 16 == printed["after"]["mean_length"]
    assert {p["prompt_tokens"] for p in problems} == {31}


def test_some_completions_are_recorded_token_by_token(trained):
    samples = [json.loads(line) for line in (trained[0] / "samples.jsonl").read_text().splitlines()]
    assert samples
    for sample in samples:
        prompt, answer = sample["prompt_tokens"], sample["answer"]
        assert (prompt, sample["budget"]) == (31, 48)
        tokens, left = sample["tokens"], sample["left"]
        assert "".join(tokens).startswith("? ")
        # A window of 17, of which 4 leave when it is full: the oldest go, whole, after 17 and 21 thinking tokens.
        assert left[:prompt] == [[]] * prompt
        assert left[prompt : prompt + 8] == [[[17, 1.0]]] * 4 + [[[21, 1.0]]] * 4
        if sample["finish"] == "stop":
            # Three pairs are asked for: `! k v k v k v` and the end.
            assert answer == len(tokens) - prompt - 8


def test_an_evaluation_can_be_recorded(trained):
    run = trained[0]
    done = pte("eval", str(run), "--budget", "57", "--out", "recorded", "--json", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    recorded = run.parent / "recorded"
    status = json.loads((recorded / "status.json").read_text())
    assert (status["state"], status["result"]["adapter"]) == ("finished", str(run))
    assert status["result"]["after"]["accuracy"] == json.loads(done.stdout)["accuracy"]
    assert json.loads((recorded / "config.json").read_text())["evict"]["budget"] == 57
    first, again = ((r / "held_out.jsonl").read_text().splitlines() for r in (run, recorded))
    assert [json.loads(line)["prompt"] for line in first] == [json.loads(line)["prompt"] for line in again]
    done = pte("eval", str(run), "--out", "recorded", cwd=run.parent)
    assert done.returncode == 2
    assert "holds a run already" in done.stderr


def test_every_trainable_tensor_moved(trained):
    weights = load_file(trained[0] / "adapter" / "adapter_model.safetensors")
    assert len(weights) == 4 * 7 * 2 + 4
    assert all(tensor.abs().max() > 0 for tensor in weights.values())


def test_eval_of_a_run_repeats_what_training_measured(trained):
    run, printed, _ = trained
    done = pte("eval", str(run), "--json", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("accuracy", "queries", "n", "evictions", "mean_length"):
        assert result[name] == printed["after"][name]
    assert result["evict"] == {"policy": "sliding", "budget": 48, "frac": 0.25, "options": {}}


def test_eval_at_another_budget_and_policy(trained):
    run = trained[0]
    full = json.loads(pte("eval", str(run), "--evict", "full", "--json", cwd=run.parent).stdout)
    assert full["evictions"] == 0
    assert full["accuracy"] > 0.9
    table = pte("eval", str(run), "--budget", "60", "--problems", "8", cwd=run.parent).stdout
    assert "budget 60" in table
    assert "accuracy (95 % interval)" in table


def test_same_seed_same_adapter(trained):
    run = trained[0]
    done = pte("train", "--config", str(run / "config.json"), "--out", "again", "--json", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    first, second = (load_file(r / "adapter" / "adapter_model.safetensors") for r in (run, run.parent / "again"))
    assert all(first[name].equal(second[name]) for name in first)


def test_an_interrupted_run_says_so(tmp_path):
    command = [sys.executable, "-m", "pte_cli", "train", "--problems", "4", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert status["step"] >= 1
    done = pte("eval", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "has no adapter yet (was its training interrupted?)" in done.stderr
