"""`pte eval --bench` through the command line, on a model whose answers are known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from chain_model import chain_model
from running import pte

PTE = [sys.executable, "-m", "pte_cli"]
PROBLEMS = [("a", "3+4?", "7"), ("b", "4+4?", "8"), ("c", "go on!", "7")]


def write(file, problems):
    file.parent.mkdir(exist_ok=True)
    rows = [{"id": i, "problem": problem, "answer": answer, "source": "own"} for i, problem, answer in problems]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    chain_model(folder / "chain")
    write(folder / "benchmarks" / "gsm8k_test.jsonl", PROBLEMS)
    write(folder / "benchmarks" / "aime24.jsonl", PROBLEMS[:1])
    return folder


GREEDY = ["eval", "--model", "chain", "--bench-dir", "benchmarks", "--max-new-tokens", "20", "--budget", "12"]


def test_scores_stand_beside_what_they_depend_on(folder):
    done = pte(*GREEDY, "--bench", "gsm8k,aime24", "--out", "out", "--format", "parquet", cwd=folder)
    assert done.returncode == 0, done.stderr
    for text in (
        "chain: --evict sliding, budget 12, frac 0.25, encoder none",
        "1 sample a problem, greedy (temperature 0), at most 20 tokens",
        "prompt style auto, grader: pte 1, math-verify",
        "33.3 % (0.0 to 100.0)",
        "100.0 % (no interval)",
        "truncated at the token limit",
        "mean over benchmarks",
        "tokens per second",
        "0.05 MiB",
    ):
        assert text in done.stdout
    assert sorted(f.name for f in (folder / "out").iterdir()) == [
        "aime24.parquet", "bench.json", "gsm8k.parquet", "scores.json",
    ]  # fmt: skip
    again = pte(*GREEDY, "--bench", "gsm8k", "--out", "out", "--compare", "out", cwd=folder)
    assert "out: 3 of 3 samples are there" in again.stderr
    assert "compared with out, paired by problem" in again.stdout
    assert "what differs: no setting" in again.stdout
    assert "gsm8k: +0.0 points" in again.stdout


def test_samples_as_json_and_graded_again(folder):
    done = pte(*GREEDY, "--bench", "gsm8k", "--limit", "2", "--samples", "4", "--temperature", "1", "--top-p", "0.9",
               "--seed", "5", "--k", "1,2", "--out", "sampled", "--json", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    found = result["benchmarks"]["gsm8k"]
    assert (found["n"], result["samples"], result["temperature"], result["top_p"], result["seed"]) == (2, 4, 1, 0.9, 5)
    assert list(found["pass_at"]) == ["1", "2"]
    graded = json.loads(pte("eval", "--grade", "sampled/gsm8k.jsonl", "--k", "1,2", "--json", cwd=folder).stdout)
    assert graded["average"] == found["average"]
    assert graded["pass_at"] == found["pass_at"]
    assert graded["reasons"] == found["reasons"]


def test_an_interrupted_evaluation_keeps_what_it_has_and_goes_on(folder):
    write(folder / "many.jsonl", [(f"{i}", f"{i}?", "7") for i in range(400)])
    command = ["eval", "--model", "chain", "--bench", "many.jsonl", "--out", "many", "--max-new-tokens", "20",
               "--budget", "20", "--set", "sampling.rows=1"]  # fmt: skip
    process = subprocess.Popen([*PTE, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file = folder / "many" / "many.jsonl"
    deadline = time.monotonic() + 120
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "samples are in many; the same command goes on" in errors
    assert "Traceback" not in errors
    before = len(file.read_text().splitlines())
    assert 64 <= before < 400
    done = pte(*command, "--json", cwd=folder)
    result = json.loads(done.stdout)
    assert result["recorded_before"] == before
    assert (result["benchmarks"]["many"]["n"], result["mean"]) == (400, 1.0)
    assert len(file.read_text().splitlines()) == 400


BAD = {
    "unknown benchmark": (["--bench", "gsmk"], "--bench gsmk: unknown benchmark; did you mean 'gsm8k'"),
    "missing folder": (["--bench", "gsm8k", "--bench-dir", "nowhere"], "--bench-dir nowhere: there is no such folder"),
    "k above samples": (["--bench", "own.jsonl", "--samples", "2", "--k", "4"], "--k 4: there are 2 samples a problem"),
    "no k": (["--bench", "own.jsonl", "--k", "one"], "--k one: whole numbers with commas are expected"),
    "equal samples": (
        ["--bench", "own.jsonl", "--samples", "2", "--temperature", "0"],
        "--samples 2: at temperature 0 they would all be equal",
    ),
    "no samples": (["--bench", "own.jsonl", "--samples", "0"], "--samples 0: at least 1"),
    "no problems": (["--bench", "own.jsonl", "--limit", "0"], "--limit 0: at least 1"),
    "unknown style": (
        ["--bench", "own.jsonl", "--prompt-style", "r1-distil"],
        "unknown prompt style; did you mean 'r1-distill'",
    ),
    "unknown format": (
        ["--bench", "own.jsonl", "--out", "o", "--format", "csv"],
        "--format csv: known: jsonl, parquet",
    ),
    "format of nothing": (["--bench", "own.jsonl", "--format", "parquet"], "is that of the samples in --out FOLDER"),
    "nothing to compare with": (["--bench", "own.jsonl", "--compare", "nowhere"], "no recorded evaluation there"),
    "samples without benchmark": (["--samples", "2"], "--samples 2: goes with --bench"),
    "task's problems": (["--bench", "own.jsonl", "--problems", "9"], "--problems 9: is for held-out problems"),
    "encoder of nothing": (["--bench", "own.jsonl", "--encoder", "pte"], "--encoder pte: comes with a run, trained"),
    "unknown policy": (["--bench", "own.jsonl", "--evict", "slidign"], "did you mean 'sliding'"),
    "two kinds": (["--bench", "own.jsonl", "--grade", "own.jsonl"], "leave out --bench"),
    "out of something else": (["--bench", "own.jsonl", "--out", "."], "holds other files and no bench.json"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_a_model_is_loaded(name, tmp_path, monkeypatch):
    write(tmp_path / "own.jsonl", PROBLEMS)
    arguments, message = BAD[name]
    monkeypatch.setattr("pte_cli.rollout.prepare.load", lambda *_, **__: pytest.fail("loaded a model"))
    done = pte("eval", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert [file.name for file in tmp_path.iterdir()] == ["own.jsonl"]
