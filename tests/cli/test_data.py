"""Own data and own rewards through the command line, on the built-in model."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from pte_plugins.tasks.recall import RecallTask

SMALL = ["--objective", "sft+grpo", "--sft-steps", "2", "--grpo-steps", "1", "--budget", "22", "--problems", "4",
         "--set", "sft.batch=4", "--set", "grpo.prompts=2"]  # fmt: skip
REWARD = '''
from pte_cli import hookimpl
from pte_cli.api import NoOptions, RewardSpec


def reward(prompts, completions, completion_ids, answer, number, **_):
    """1 where the answer is at the end, else half the share of its words; every fifth row has none."""
    return [None if n % 5 == 0 else float(c.endswith(a)) or sum(w in c.split() for w in a.split()) / len(a.split()) / 2
            for c, a, n in zip(completions, answer, number, strict=True)]


@hookimpl
def pte_rewards():
    return [RewardSpec("ends-right", "the answer is at the end", lambda _: reward, NoOptions)]
'''


def pte(*arguments, cwd):
    path = os.pathsep.join([str(cwd), str(cwd.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-m", "pte_cli", *arguments], cwd=cwd, capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": path})  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data file of the built-in task's words, and a distribution with a reward."""
    folder = tmp_path_factory.mktemp("data")
    task, rng = RecallTask(4, 2), random.Random(0)
    rows = []
    for number in range(20):
        one = task.sample(rng)
        rows.append({"question": one.prompt, "response": f"{one.thinking} {one.answer}", "answer": one.answer,
                     "number": number})  # fmt: skip
    (folder / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "my_reward.py").write_text(REWARD)
    info = folder / "my_reward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-reward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pte]\nends-right = my_reward\n")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    done = pte("train", "--data", "toy.jsonl", "--reward", "ends-right", *SMALL, "--json", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", json.loads(done.stdout), done.stderr


def test_two_steps_of_sft_and_one_of_grpo_on_own_rows_with_an_own_reward(trained):
    run, printed, stderr = trained
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["sft", "sft", "grpo"]
    assert all(line["evictions"] > 0 for line in lines)
    assert lines[2]["reward"] == pytest.approx(lines[2]["rewards/ends-right/mean"])
    assert 0 <= lines[2]["reward"] <= 1
    assert lines[2]["gap/max"] < 1e-4
    assert "18 rows to train on, 2 held out; prompt = question, answer = answer, completion = response" in stderr
    for when in ("before", "after"):
        assert printed[when]["n"] + printed[when]["ungraded"] == 2


def test_the_saved_settings_start_the_same_run_elsewhere(trained, folder, tmp_path):
    run, printed, _ = trained
    other = folder / "elsewhere"
    other.mkdir()
    done = pte("train", "--config", str(run / "config.json"), "--json", "--out", "again", cwd=other)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["after"]["accuracy"] == printed["after"]["accuracy"]

    def learned(path):
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if "second" not in k and k != "peak_bytes"} for line in lines]

    assert learned(other / "again") == learned(run)


def test_a_run_is_measured_on_the_rows_it_held_out(trained, folder):
    _, printed, _ = trained
    done = pte("eval", "run", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] == printed["after"]["accuracy"]


def test_the_first_prompt_is_shown(folder):
    done = pte("train", "--data", "toy.jsonl", "--show-prompt", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == json.loads((folder / "toy.jsonl").read_text().splitlines()[0])["question"]
    assert "toy.jsonl:1, style plain, 14 tokens:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "toy.json"], "did you mean 'toy.jsonl'"),
        (["--data", "toy.jsonl", "--set", "data.columns.prompt=qestion"], "did you mean 'question'"),
        (["--data", "toy.jsonl", "--reward", "ends-rihgt"], "did you mean 'ends-right'"),
        (["--data", "toy.jsonl", "--budget", "17"], "toy.jsonl:1 (14 tokens)"),
        (["--data", "toy.jsonl", "--entries", "4"], "--entries 4"),
        (["--show-prompt"], "--show-prompt"),
        (["--reward", "ends-right"], "reward.names: needs data"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing_behind(folder, arguments, words):
    done = pte("train", *arguments, "--out", "wrong", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (folder / "wrong").exists()


def test_a_reward_that_raises_stops_the_run_with_its_row(folder, tmp_path):
    rows = [json.loads(line) for line in (folder / "toy.jsonl").read_text().splitlines()]
    (folder / "bad.jsonl").write_text("".join(json.dumps({**row, "number": "x"}) + "\n" for row in rows))
    done = pte("train", "--data", "bad.jsonl", "--reward", "ends-right", *SMALL, "--out", "failed", cwd=folder)
    assert done.returncode == 1
    assert "reward 'ends-right' failed at row bad.jsonl:" in done.stderr.splitlines()[-1]
    assert json.loads((folder / "failed" / "status.json").read_text())["state"] == "failed"
