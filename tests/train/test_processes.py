"""Two processes do what one does: gradients in float64, metrics, and whole runs through `accelerate launch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "two_processes.py"
# Without GPUs the flag means processes that talk through gloo; `--cpu` would start one only.
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
          "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]  # fmt: skip
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(count, *command, cwd):
    start = [*LAUNCH, "--num_processes", str(count)] if count > 1 else [sys.executable]
    done = subprocess.run(
        [*start, *command], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_gradients_of_two_processes_are_those_of_one(tmp_path):
    """SFT of 5 examples and GRPO of 3 groups: neither divides by 2, and lengths differ between the processes."""
    for count in (1, 2):
        launch(count, str(SCRIPT), str(tmp_path / f"{count}.pt"), cwd=tmp_path)
    (alone, one), (together, two) = (torch.load(tmp_path / f"{count}.pt") for count in (1, 2))
    assert (alone, together) == (1, 2)
    for name, (gradients, metrics) in one.items():
        others, its = two[name]
        assert max(g.abs().max() for g in gradients) > 1e-4
        for a, b in zip(gradients, others, strict=True):
            assert (a - b).abs().max() <= 1e-9
        for key, value in metrics.items():
            if key not in ("evictions", "rounds") or name.startswith("['grpo"):
                assert its[key] == pytest.approx(value, abs=1e-9), (name, key)


def test_a_run_of_two_processes_ends_with_the_adapter_of_one(tmp_path):
    """5 steps with completions of different lengths; one writer of every file."""
    sets = ["model.dtype=float64", "sampling.temperature=1.5", "grpo.group_size=4", "train.completions_every=2"]
    command = ["-m", "pte_cli", "train", "--objective", "grpo", "--grpo-steps", "5", "--problems", "4", "--json"]
    command += [part for item in (*sets, "grpo.prompts=3") for part in ("--set", item)]
    for count in (1, 2):
        done = launch(count, *command, "--out", f"run{count}", cwd=tmp_path)
        assert json.loads(done.stdout)["steps"] == 5
    one, two = (load_file(tmp_path / f"run{count}" / "adapter" / "adapter_model.safetensors") for count in (1, 2))
    for name, tensor in one.items():
        assert (tensor - two[name]).abs().max() <= 1e-5, name
    lines = [(tmp_path / f"run{count}" / "metrics.jsonl").read_text().splitlines() for count in (1, 2)]
    assert [len(each) for each in lines] == [5, 5]
    for a, b in zip(*([json.loads(line) for line in each] for each in lines), strict=True):
        assert a["completions/min_length"] < a["completions/max_length"]
        for key in ("reward", "loss", "completions/mean_length", "clip_ratio/region_mean"):
            assert a[key] == pytest.approx(b[key], abs=1e-6)
    assert sorted(f.name for f in (tmp_path / "run2" / "completions").iterdir()) == [
        f"step-00000{step}-{rank}.parquet" for step in (1, 3, 5) for rank in (0, 1)
    ]
