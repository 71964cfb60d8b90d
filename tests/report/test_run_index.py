"""One run as its folder tells it, and several compared."""

from __future__ import annotations

import json
import math

import pytest
from run_folders import run_folder

from pte_cli.errors import UsageError
from pte_cli.report.runs import changed_settings, difference, differing, find_runs, view


def test_runs_are_found_at_any_depth_and_nothing_else_is(tmp_path):
    for name in ("b", "sweep/runs/train-x", "a"):
        run_folder(tmp_path / name)
    (tmp_path / "a" / "checkpoints" / "x").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["a", "b", "sweep/runs/train-x"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]
    with pytest.raises(UsageError, match="nowhere': there is no such folder"):
        list(find_runs(tmp_path / "nowhere"))


def test_settings_that_are_not_the_defaults(tmp_path):
    # n_sink = 4 is what `sink` takes anyway, so only the policy itself has changed.
    settings = {"evict": {"policy": "sink", "options": {"n_sink": 4}}, "sft": {"steps": 7}, "out": "elsewhere"}
    run = view(run_folder(tmp_path / "run", settings))
    assert changed_settings(run.config) == {"evict.policy": ("sliding", "sink"), "sft.steps": (400, 7)}
    settings["evict"]["options"]["n_sink"] = 5
    run = view(run_folder(tmp_path / "other", settings))
    assert changed_settings(run.config)["evict.options.n_sink"] == (4, 5)


def test_options_of_a_strategy_that_is_not_installed_are_all_shown(tmp_path):
    run = view(run_folder(tmp_path / "run", {"evict": {"policy": "gone", "options": {"x": 1}}}))
    assert changed_settings(run.config) == {"evict.policy": ("sliding", "gone"), "evict.options.x": (None, 1)}


def test_a_run_that_is_still_going_is_as_far_as_its_metrics(tmp_path):
    path = run_folder(tmp_path / "run", {"train": {"objective": "sft+grpo"}}, state="running")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "phase": "sft", "loss": 2}\n{"step": 2, "phase": "sft", "loss": 1}\n{"step": 3, "ph')
    run = view(path)
    assert (run.state, run.step, run.steps, run.last["loss"], dict(run.after)) == ("running", 2, 440, 1, {})
    (path / "before.json").write_text(json.dumps({"accuracy": 0.25}))
    assert run.before["accuracy"] == 0.25


def test_settings_side_by_side(tmp_path):
    runs = [
        view(run_folder(tmp_path / "a", {"evict": {"policy": "sink", "options": {"n_sink": 4}}})),
        view(run_folder(tmp_path / "b", {"evict": {"budget": 64}})),
    ]
    assert differing(runs) == {
        "evict.policy": ["sink", "sliding"],
        "evict.budget": [48, 64],
        "evict.options.n_sink": [4, None],
    }


def test_the_difference_is_paired_by_problem(tmp_path):
    first = view(run_folder(tmp_path / "a", right=[1, 0, 0, 0, 1, None]))
    second = view(run_folder(tmp_path / "b", right=[1, 1, 1, 0, 0, 1]))
    found = difference(first, second).estimate
    # Differences 0, 1, 1, 0, -1 of the five graded in both: mean 1/5, variance 2.8 / 4, and t(4) = 2.776445.
    half = 2.776445 * math.sqrt(0.7 / 5)
    assert (found.mean, found.n) == (0.2, 5)
    assert (found.low, found.high) == pytest.approx((0.2 - half, min(1, 0.2 + half)), abs=1e-6)


def test_other_problems_can_not_be_compared(tmp_path):
    first = view(run_folder(tmp_path / "a", right=[1, 0]))
    other = view(run_folder(tmp_path / "b", right=[1, 0], prompts="q"))
    bare = view(run_folder(tmp_path / "c"))
    assert difference(first, other).reason == "not the same problems (0 in both)"
    assert difference(first, bare).reason == f"{tmp_path / 'c'} has no held-out results"
