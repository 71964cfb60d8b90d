"""What the documentation shows, runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tomli
from helpers import adapted, prompts

from pte_cli.plugin_options import check_options
from pte_cli.registry import build, build_registry, load_registry
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.sweep.plan import make_plan
from pte_cli.sweep.schema import parse_sweep
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


def test_the_reward_of_the_data_page_works(tmp_path, monkeypatch):
    [source] = blocks(ROOT / "docs" / "data.md", "python")
    (tmp_path / "my_reward.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = build_registry([("my-reward", EntryPoint("ends-right", "my_reward", "pte"))])
    reward = registry.reward("ends-right").build(None)
    completions, columns = ["so 4", "so 5", "so"], {"answer": ["4", "4", None], "finish": ["stop"] * 3}
    assert reward(["p"] * 3, completions, [[1]] * 3, **columns) == [1, 0, None]


def test_the_file_of_the_sweep_page_can_be_planned():
    example, launch = blocks(ROOT / "docs" / "sweep.md", "toml")
    plan = make_plan(parse_sweep(Path("x.toml"), tomli.loads(example)), Path("nowhere"))
    counts = {part: sum(cell.part == part for cell in plan.cells) for part in ("main", "rank", "budgets")}
    # rank: lora_c at 16 alone, pte at 8 and 16. budgets: pte and pte at both ranks, at 2 points each.
    assert counts == {"main": 6, "rank": 2 + 4, "budgets": 2 * (3 + 2 + 2)}
    short = f"{example.partition('[defaults]')[0].replace('baseline', '# ')}{launch}[runs.a]\nevict.frac = 0.5\n"
    settings = parse_sweep(Path("x.toml"), tomli.loads(short))
    spec = load_registry().launcher(settings.sweep.launch.engine)
    assert check_options("launch.options", spec, settings.sweep.launch.options).minutes == 120


def test_the_launcher_of_the_sweep_page_works(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    [source] = blocks(ROOT / "docs" / "sweep.md", "python")
    (tmp_path / "my_ray.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    registry = build_registry([("my-ray", EntryPoint("ray", "my_ray", "pte"))])
    assert registry.errors == ()
    launcher = build(registry.launcher("ray"), {})
    code = "import os, sys; print(os.environ['MINE']); sys.exit(3)"
    log = tmp_path / "logs" / "log"
    job = launcher.submit([sys.executable, "-c", code], log=log, environment={"MINE": "7"})
    asleep = launcher.submit([sys.executable, "-c", "import time; time.sleep(60)"], log=log, environment={})
    asleep.cancel()
    deadline = time.monotonic() + 60
    while (job.poll() is None or asleep.poll() is None) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (job.poll(), asleep.poll()) == (3, 1)
    assert log.read_text() == "7\n"


@pytest.mark.parametrize("file", [file for file in DOCS if file != TUTORIAL], ids=lambda f: f.name)
def test_pte_commands_are_spelt_right(file, tmp_path):
    """Each `pte` line is accepted: as a dry run, or as far as a missing run or a budget of 1 lets it go."""
    rows = [row.replace("? c a", f"? c {x}") for row in blocks(ROOT / "docs" / "data.md", "json") for x in "abc"]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    shutil.copy(ROOT / "experiments.toml", tmp_path)
    for block in blocks(file, "bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] in (["pte", "train"], ["pte", "sweep"]):
                command = [*words[1:], "--dry-run"]
            elif "--grade" in words:
                command = words[1:]
            elif words[:2] in (["pte", "eval"], ["pte", "generate"], ["pte", "profile"]):
                command = [*words[1:], "--budget", "1"]
            elif (
                words[:2] in (["pte", "runs"], ["pte", "report"])
                or words[:2] == ["pte", "export"]
                or (words[:2] == ["pte", "plugins"] and words[2] != "check")
            ):
                command = words[1:]
            else:
                continue
            done = subprocess.run(
                [sys.executable, "-m", "pte_cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            expected = (
                "is not a run",
                "there is no such folder",
                "evict.budget = 1",
                "pip install 'pte-cli[gym]'",
                "completions.jsonl: can't be read",
            )
            good = done.returncode == 0 or any(message in done.stderr for message in expected)
            assert good, f"{line}\n{done.stderr}"
