"""What the documentation shows, runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from helpers import adapted, prompts

from pte_cli.registry import build_registry
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.testing import EvictionContract, run_checks
from pte_cli.train.replay import replay

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial-policy.md"  # its commands are run with its own policy
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(file, language):
    return re.findall(rf"```{language}\n(.*?)```", file.read_text(), flags=re.DOTALL)


def test_the_policy_of_the_plugin_page_works(tmp_path, monkeypatch):
    source, tests = blocks(ROOT / "docs" / "plugins.md", "python")
    (tmp_path / "my_policy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = build_registry([("my-policy", EntryPoint("small-keys", "my_policy", "pte"))])
    assert registry.errors == ()
    assert [outcome for outcome in run_checks(registry.eviction("small-keys")) if not outcome.passed] == []
    scope = {}
    exec(tests, scope)
    assert scope["TestSmallKeys"].plugin == registry.evictions[0].qualified
    assert issubclass(scope["TestSmallKeys"], EvictionContract)
    rule = registry.eviction("small-keys").build(None)
    model = adapted("pte")
    traces = RolloutEngine(model, rule, Budget(20, 0.25), Sampling(max_new_tokens=40)).generate(prompts([5, 9]))
    scored = replay(model, traces, rule)
    for i, trace in enumerate(traces):
        assert len(trace.evictions) > 5
        assert (scored[i, : len(trace.completion)] - trace.logprobs).abs().max() <= 1e-5


def test_the_tutorial_leads_to_a_working_policy(tmp_path):
    """Its two files, at most 25 lines, put where `pip install -e .` makes them found; then its own commands."""
    [source], [project] = blocks(TUTORIAL, "python"), blocks(TUTORIAL, "toml")
    assert len((source + project).splitlines()) <= 25
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    (package / "small_values.py").write_text(source)
    (package / "pyproject.toml").write_text(project)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)}

    def run(*command):
        done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    commands = [line for block in blocks(TUTORIAL, "bash") for line in block.splitlines()]
    assert commands[0] == "pip install -e ."
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--target", str(site)]
    run(sys.executable, "-m", "pip", "install", *options, ".")
    check, train = (line.split() for line in commands[1:])
    assert run(sys.executable, "-m", "pte_cli", *check[1:]).splitlines() == [
        f"pass  {name}" for name in EvictionContract.checks()
    ]
    assert len(EvictionContract.checks()) == 9
    result = json.loads(run(sys.executable, "-m", "pte_cli", *train[1:], "--json"))
    assert (result["steps"], result["after"]["n"]) == (1, 4)
    assert result["after"]["evictions"] > 0


@pytest.mark.parametrize("file", DOCS, ids=lambda f: f.name)
def test_links_inside_the_project_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text()):
        assert target.startswith("https://") or (file.parent / target).exists(), target


@pytest.mark.parametrize("file", [file for file in DOCS if file != TUTORIAL], ids=lambda f: f.name)
def test_pte_commands_are_spelt_right(file, tmp_path):
    """Each `pte` line is accepted: training as a dry run, evaluation as far as a missing run lets it go."""
    for block in blocks(file, "bash"):
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[:2] == ["pte", "train"]:
                command = [*words[1:], "--dry-run"]
            elif "--grade" in words:
                command = words[1:]
            elif words[:2] == ["pte", "eval"]:
                command = [*words[1:], "--budget", "1"]
            elif words[:2] == ["pte", "plugins"] and words[2] != "check":
                command = words[1:]
            else:
                continue
            done = subprocess.run(
                [sys.executable, "-m", "pte_cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            good = done.returncode == 0 or "is not a run" in done.stderr or "evict.budget = 1" in done.stderr
            good = good or ("--grade" in words and "completions.jsonl: can't be read" in done.stderr)
            assert good, f"{line}\n{done.stderr}"
