"""`pte profile`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from running import pte

STEP = ("--length", "24", "--budget", "20", "--frac", "1", "--rows", "2", "--prompt", "8", "--rank", "4")
STEP_PTE = (*STEP, "--set", "encoder.global_tokens=4")


def test_memory_as_json(tmp_path):
    done = pte("profile", *STEP_PTE, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["report"], report["model"]) == ("memory", "tiny")
    assert [(step["arm"], step["budget"], step["length"]) for step in report["steps"]] == [
        ("full LoRA", None, 24),
        ("LoRA_c", 20, 24),
        ("PTE", 20, 24),
    ]
    for step in report["steps"]:
        predicted = step["predicted"]
        assert list(predicted["phases"]) == ["rollout", "replay", "update"]
        assert predicted["peak"] == max(phase["peak"] for phase in predicted["phases"].values())
        for phase in (predicted, *predicted["phases"].values()):
            assert sum(phase["parts"].values()) == phase["peak"]
        assert 0.95 < step["predicted_to_measured"] < 1.05
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_fits(tmp_path):
    """Under the budget a step of any length fits where one of some hundred tokens does; with the full cache not."""
    done = pte("profile", *STEP_PTE, "--memory", "32MiB", "--no-measure", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["memory"] == 32 * 2**20
    fits = {fit["arm"]: fit for fit in report["fits"]}
    assert fits["PTE"]["most_tokens"]["at_most"] > 10 * fits["full LoRA"]["most_tokens"]["at_most"] > 240
    most = str(fits["full LoRA"]["most_tokens"]["at_most"])
    more = ("--evict", "full", "--no-measure", "--json", *STEP[2:])
    [step] = json.loads(pte("profile", "--length", most, *more, cwd=tmp_path).stdout)["steps"]
    assert 0.97 * 32 * 2**20 < step["predicted"]["peak"] <= 32 * 2**20


def test_speed_adds_up(tmp_path):
    done = pte("profile", "--report", "speed", *STEP, "--encoder", "none", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [step["arm"] for step in report["steps"]] == ["full LoRA", "LoRA_c"]
    for step in report["steps"]:
        assert step["tokens"] == 2 * 24
        rollout = step["phases"]["rollout"]
        assert sum(rollout["breakdown"].values()) == pytest.approx(rollout["seconds"])
        assert rollout["tokens_per_second"] == pytest.approx(48 / rollout["seconds"])
        assert step["decode"][-1]["tokens"] == 24
        assert all(point["ms"] > 0 for point in step["decode"])


def test_tables_and_files(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    done = pte("profile", "--report", "flops", *STEP, "--out", "found", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "operations of one training step" in done.stdout
    assert re.search(r"^PTE, budget 20 +24 ", done.stdout, re.MULTILINE)
    folder = tmp_path / "found"
    assert (folder / "flops.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "flops.html").read_text()
    assert "<svg" in page
    assert "PTE, budget 20" in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", page), "the page needs nothing but itself"
    report = json.loads((folder / "flops.json").read_text())
    assert report["steps"][0]["total"] > 0


def test_trace_is_one_that_viewers_read(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    done = pte("profile", "--report", "trace", *STEP, "--out", "found", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["operators"][0]["cpu_ms"] > 0
    events = json.loads((tmp_path / "found" / "perfetto.json").read_text())["traceEvents"]
    assert {"rollout", "replay", "update"} <= {event.get("name") for event in events}
    assert sorted(file.name for file in (tmp_path / "found").iterdir()) == [
        "perfetto.json",
        "trace.html",
        "trace.json",
        "trace.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--report", "size"), "--report size: known: flops, memory, speed, trace"),
        (("--gradient", "none"), "--gradient none: known: exact, truncated"),
        (("--memory", "24"), "--memory '24': expected a number and a unit, for example 24GiB"),
        (("--report", "flops", "--memory", "1GiB"), "--memory 1GiB: goes with --report memory"),
        (("--length", "1"), "--length 1: a completion needs at least 2 tokens"),
        (("--budget", "40", "--prompt", "38"), "evict.budget = 40: a prompt of 38 tokens leaves 2 for thinking"),
        (("--report", "trace"), "--report trace: writes files; name a folder for them with --out"),
        (("preset:qwen2.5-3b", "--report", "speed"), "--report speed: runs the model, and 'preset:qwen2.5-3b' has no"),
        (("--set", "model.quantization=4bit"), "model.quantization = '4bit': "),
        (("nowhere",), "model.name = 'nowhere': neither 'tiny'"),
    ],
)
def test_refusals(arguments, message, tmp_path):
    done = pte("profile", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: {message}" in done.stderr
    assert done.stdout == ""


def test_figures_without_matplotlib(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "pte_cli.profile.plots.find_spec", lambda name: None if name == "matplotlib" else found(name), raising=True
    )
    done = pte("profile", "--out", "found", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "error: --out: figures need matplotlib, which is not installed: pip install 'pte-cli[plots]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_preset_is_predicted_without_weights(tmp_path):
    """Qwen2.5-3B in bfloat16: 3,085,938,688 parameters in two bytes each, and twice 64 rotary frequencies."""
    done = pte("profile", "preset:qwen2.5-3b", *STEP, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for step in json.loads(done.stdout)["steps"]:
        assert step["predicted"]["parts"]["weights"] == 2 * 3_085_938_688 + 2 * 64 * 4
        assert "measured" not in step
