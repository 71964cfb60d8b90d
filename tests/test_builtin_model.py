"""The built-in model and task make the point: right with the full cache, wrong when early thinking is evicted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def accuracy(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", "eval", "--json", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["accuracy"]


def test_right_with_the_full_cache_and_below_half_of_that_at_the_default_budget(tmp_path):
    full = accuracy("--evict", "full", cwd=tmp_path)
    bounded = accuracy("--evict", "sliding", cwd=tmp_path)
    assert full >= 0.95
    assert bounded < full / 2


@pytest.mark.slow
def test_the_main_job_learns(tmp_path):
    """`pte train --encoder pte --evict sliding --frac 0.25`, nothing else given; minutes."""
    command = [
        sys.executable,
        "-m",
        "pte_cli",
        "train",
        "--encoder",
        "pte",
        "--evict",
        "sliding",
        "--frac",
        "0.25",
    ]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["seconds"]["all"] <= 300
    assert result["after"]["low"] > result["before"]["high"]
    assert result["after"]["accuracy"] >= result["before"]["accuracy"] + 0.3
