"""`pte train --resume`: stopped by signals and killed, a run ends as if it never had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from running import pte

PTE = [sys.executable, "-m", "pte_cli"]
SMALL = ["--problems", "4", "--save-every", "2", "--set", "sft.batch=4", "--set", "grpo.prompts=2",
         "--set", "grpo.group_size=2", "--set", "sampling.temperature=1.5"]  # fmt: skip
COMMAND = ["train", "--objective", "sft+grpo", "--sft-steps", "3", "--grpo-steps", "7", *SMALL]
MACHINE = ("seconds/", "tokens_per_second/", "peak_bytes")


def outcome(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if not k.startswith(MACHINE)} for line in lines]
    return (run / "adapter" / "adapter_model.safetensors").read_bytes(), kept


def lines_of(run):
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0


def stopped(folder, name, which, after):
    """A run that gets a signal once it has logged `after` steps."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*PTE, *COMMAND, "--out", name], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while lines_of(folder / name) < after and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(which)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    done = pte(*COMMAND, "--out", "whole", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_a_stopped_run_ends_as_the_reference(reference, which):
    name = which.name
    code, errors = stopped(reference, name, which, after=5)
    status = json.loads((reference / name / "status.json").read_text())
    if which == signal.SIGKILL:
        assert (code, status["state"]) == (-signal.SIGKILL, "running")
    else:
        assert (code, status["state"]) == (130, "interrupted")
        assert "finishing this step, then saving; once more to stop at once" in errors
        assert "Traceback" not in errors
        assert lines_of(reference / name) == status["step"]
    done = pte("train", "--resume", name, "--json", cwd=reference)
    assert done.returncode == 0, done.stderr
    assert "goes on after step" in done.stderr
    assert json.loads(done.stdout)["steps"] == 10
    assert outcome(reference / name) == outcome(reference / "whole")


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(reference):
    code, _ = stopped(reference, "damaged", signal.SIGINT, after=6)
    assert code == 130
    newest = sorted((reference / "damaged" / "checkpoints").iterdir())[-1]
    (newest / "optimizer.safetensors").write_bytes(b"half")
    done = pte("train", "--resume", "damaged", cwd=reference)
    assert done.returncode == 0, done.stderr
    assert f"{newest.name} can't be used: optimizer.safetensors is not what was written (4 of" in done.stderr
    assert outcome(reference / "damaged") == outcome(reference / "whole")


def test_what_can_not_be_resumed(reference, tmp_path):
    for arguments, expected in (
        (["--resume", "whole"], "--resume 'whole': has finished; see `pte eval whole`"),
        (["--resume", "nowhere"], "'nowhere' is not a run: it has no config.json"),
        (["--resume", "whole", "--seed", "3"], "seed = 3: --resume goes on with the run's own settings; leave it out"),
        (["--resume", "whole", "--set", "a=1"], "--resume goes on with the run's own settings"),
    ):
        done = pte("train", *arguments, cwd=reference)
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


def test_the_start_says_what_is_trained(reference):
    done = pte("train", "--sft-steps", "1", *SMALL, "--out", "said", cwd=reference)
    assert "trained parameters: LoRA 311,296, encoder pte 36,864" in done.stderr
    assert "memory, without activations: " in done.stderr
