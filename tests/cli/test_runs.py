"""`pte runs` and `pte report` on runs that were never made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import pte

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from run_folders import SAMPLE, run_folder

LOSSES = [{"step": i, "phase": "sft", "loss": 1 / i} for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """runs/a and runs/b with results, runs/c that was interrupted, and runs/d whose settings are no longer any."""
    root = tmp_path_factory.mktemp("root")
    run_folder(root / "runs" / "a", {"sft": {"steps": 3}}, [1, 0, 0, 0], metrics=LOSSES, samples=[SAMPLE])
    run_folder(root / "runs" / "b", {"sft": {"steps": 3}, "evict": {"budget": 64}}, [1, 1, 0, 0], metrics=LOSSES)
    run_folder(root / "runs" / "c", {"evict": {"policy": "full"}}, state="interrupted", metrics=LOSSES)
    broken = run_folder(root / "runs" / "d")
    (broken / "config.json").write_text('{"sft": {"stps": 3}}')
    return root


def test_list(root):
    done = pte("runs", "list", cwd=root)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1:] == [
        ["a", "finished", "sft", "pte", "sliding", "48", "25.0", "3/3"],
        ["b", "finished", "sft", "pte", "sliding", "64", "50.0", "3/3"],
        ["c", "interrupted", "sft", "pte", "full", "3/400"],
    ]
    left_out, after = done.stderr.splitlines()
    assert left_out.startswith("runs/d left out: ")
    assert "did you mean 'steps'" in left_out
    assert after == "next: pte runs show runs/c"


def test_list_as_json(root):
    done = pte("runs", "list", "runs", "--json", cwd=root)
    found = json.loads(done.stdout)
    assert [run["run"] for run in found["runs"]] == ["runs/a", "runs/b", "runs/c"]
    assert found["runs"][1]["accuracy"] == {"accuracy": 0.5, "low": 0.0, "high": 1.0, "n": 4}
    assert (found["runs"][2]["accuracy"], found["runs"][2]["steps"]) == (None, 400)
    assert [run["run"] for run in found["unreadable"]] == ["runs/d"]


def test_list_of_nothing(tmp_path):
    (tmp_path / "runs").mkdir()
    done = pte("runs", "list", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("no runs in runs\n", "next: pte train\n")


def test_show(root):
    document = json.loads(pte("runs", "show", "runs/b", "--json", cwd=root).stdout)
    assert document["changed"] == {
        "evict.budget": {"default": 48, "run": 64},
        "sft.steps": {"default": 400, "run": 3},
    }
    assert document["metrics"] == {"step": 3, "phase": "sft", "loss": 1 / 3}
    assert document["files"]["metrics.jsonl"] == (root / "runs" / "b" / "metrics.jsonl").stat().st_size
    shown = pte("runs", "show", "runs/b", cwd=root).stdout
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
    for line in ("evict.budget 48 64", "loss 0.333333", "runs/b: finished, sft, step 3/3"):
        assert line in lines, line


def test_compare(root):
    document = json.loads(pte("runs", "compare", "runs/a", "runs/b", "runs/c", "--json", cwd=root).stdout)
    assert document["settings"]["evict.budget"] == {"runs/a": 48, "runs/b": 64, "runs/c": 48}
    assert list(document["settings"]) == ["evict.policy", "evict.budget", "sft.steps"]
    first, second = document["differences"]
    # One of four problems is right only in b: mean 1/4, standard deviation 1/2, t(3) = 3.182446.
    assert first["estimate"]["mean"] == 0.25
    assert first["estimate"]["low"] == pytest.approx(0.25 - 3.182446 / 4, abs=1e-6)
    assert (second["estimate"], second["reason"]) == (None, "runs/c has no held-out results")
    shown = pte("runs", "compare", "runs/a", "runs/b", cwd=root).stdout
    assert "(b) - (a): +25.0 (-54.6 to +100.0), 4 problems" in shown


def test_report(root):
    done = pte("report", "runs/a", cwd=root)
    assert done.stdout == "runs/a/report.html\n"
    assert done.stderr.splitlines()[-1] == "next: pte runs show runs/a"
    assert "problem 3: wrong" in (root / "runs" / "a" / "report.html").read_text()
    done = pte("report", "runs/c", "--out", "pages/c.html", "--json", cwd=root)
    document = json.loads(done.stdout)
    assert (document["report"], document["state"], document["steps"], document["samples"]) == (
        "pages/c.html",
        "interrupted",
        3,
        0,
    )
    assert (root / "pages" / "c.html").is_file()
