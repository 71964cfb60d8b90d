"""Wrong input: one line that says what is wrong, exit code 2, at most 3 seconds, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

BAD = {
    "frac zero": (["--frac", "0"], "evict.frac = 0.0: must be more than 0"),
    "frac above one": (["--frac", "1.5"], "evict.frac = 1.5: must be at most 1"),
    "unknown encoder": (["--encoder", "ptee"], "did you mean 'pte'"),
    "unknown policy": (["--evict", "slidign"], "did you mean 'sliding'"),
    "budget too small for the prompt": (["--budget", "33"], "evict.budget = 33: a prompt of 31 tokens"),
    "group of one": (["--group-size", "1"], "grpo.group_size = 1: must be at least 2"),
    "unwritable folder": (["--out", "/proc/pte/run"], "--out '/proc/pte/run': "),
    "out is a file": (["--out", "taken/run"], "is a file, not a folder"),
    "a run is there already": (["--out", "old"], "holds a run already"),
    "unknown setting": (["--set", "evict.windw=3"], "evict.windw = 3: unknown setting"),
    "unknown option": (["--set", "encoder.options.globals=3"], "did you mean 'global_tokens'"),
    "unknown option of a policy": (["--evict", "sink", "--set", "evict.options.sinks=3"], "did you mean 'n_sink'"),
    "unknown score": (["--evict", "importance", "--set", "evict.options.score=h2o"], "'attention', 'window'"),
    "all prompts pinned by the policy": (
        ["--evict", "sink", "--set", "evict.options.n_sink=46"],
        "evict.budget = 48: 46 pinned tokens leave 2 for thinking; use at least 50",
    ),
    "likelihood of tokens that differ by layer": (
        ["--evict", "importance", "--encoder", "ttt", "--set", "encoder.options.objective=nll"],
        "drops different ones in each layer",
    ),
    "missing file": (["--config", "nowhere.toml"], "'nowhere.toml': can't be read"),
    "objective": (["--objective", "ppo"], "must be 'sft', 'grpo' or 'sft+grpo'"),
}


def pte(*arguments, cwd):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    return done, time.monotonic() - start


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_train(name, tmp_path):
    (tmp_path / "taken").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    arguments, message = BAD[name]
    done, seconds = pte("train", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert seconds <= 3
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is not a run: it has no config.json"),
        (["empty"], "has no adapter yet"),
        (["empty", "--encoder", "none"], "was trained with 'pte'"),
        (["--budget", "20"], "evict.budget = 20"),
        (["--bench", "gsmk"], "--bench gsmk: unknown benchmark; did you mean 'gsm8k'"),
        (["--bench", "gsm8k", "--bench-dir", "nowhere"], "--bench-dir nowhere: there is no such folder"),
        (["--bench", "gsm8k", "--bench-dir", "empty"], "--bench-dir empty: there are no .jsonl files in it"),
    ],
)
def test_bad_input_of_eval(arguments, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    done, seconds = pte("eval", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert seconds <= 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["eval", "--help"],
        ["generate", "--help"],
        ["export", "--help"],
        ["train", "--dry-run"],
        ["--version"],
    ],
)
def test_help_and_dry_run_import_no_torch(arguments, tmp_path):
    code = (
        "import sys\nfrom pte_cli.cli.app import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as done: assert not done.code, done.code\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plugin_is_one_line_and_the_command_goes_on(tmp_path):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pte]\nbad = broken_module\n")
    (tmp_path / "broken_module.py").write_text("raise SystemExit('no licence')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", "train", "--dry-run", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == "plugin bad of broken left out: SystemExit: no licence\n"
    assert json.loads(done.stdout)["config"]["encoder"]["name"] == "pte"
