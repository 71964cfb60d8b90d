"""The code that the documentation shows, runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tomli
from helpers import NOISE, adapted, prompts
from pages import DOCS, ROOT, blocks, commands
from running import pte
from safetensors.torch import load_file

from pte_cli.plugin_options import check_options
from pte_cli.registry import build, build_registry, load_registry
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import eviction_schedule
from pte_cli.sweep.plan import make_plan
from pte_cli.sweep.schema import parse_sweep
from pte_cli.testing import EvictionContract, run_checks
from pte_cli.train.replay import replay

TUTORIAL = DOCS / "tutorial-policy.md"


def test_the_policy_of_the_plugin_page_works(tmp_path, monkeypatch):
    source, tests = blocks(DOCS / "plugins.md", "python")
    [project] = blocks(DOCS / "plugins.md", "toml")
    assert tomli.loads(project)["project"]["entry-points"]["pte"] == {"small-keys": "my_policy"}
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
        assert (scored[i, : len(trace.completion)] - trace.logprobs).abs().max() <= NOISE


@pytest.fixture
def fresh_registry():
    """What is installed is looked for anew, before the test and after it."""
    load_registry.cache_clear()
    yield
    load_registry.cache_clear()
    sys.modules.pop("small_values", None)


def test_the_tutorial_leads_to_a_working_policy(tmp_path, monkeypatch, fresh_registry):
    """Its two files, at most 25 lines, put where `pip install -e .` makes them found; then its own commands."""
    [source], [project] = blocks(TUTORIAL, "python"), blocks(TUTORIAL, "toml")
    assert len((source + project).splitlines()) <= 25
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    (package / "small_values.py").write_text(source)
    (package / "pyproject.toml").write_text(project)
    install, check, train = commands(TUTORIAL)
    assert install == ["pip", "install", "-e", "."]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "."], cwd=package, check=True)
    monkeypatch.syspath_prepend(site)
    checked = pte(*check[1:], cwd=tmp_path)
    assert checked.stdout.splitlines() == [f"pass  {name}" for name in EvictionContract.checks()], checked.stderr
    assert len(EvictionContract.checks()) == 9
    trained = pte(*train[1:], "--json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert (result["steps"], result["after"]["n"]) == (1, 4)
    assert result["after"]["evictions"] > 0


def test_the_numbers_of_the_budget_page():
    """Its code, and its table: prompts of 31 tokens and completions of 32 at the defaults."""
    page = DOCS / "budget.md"
    [source] = blocks(page, "python")
    exec(source, {})
    fed = [int(step) for step in re.findall(r"^\| (\d+) \| 48 \| full: 4 leave", page.read_text(), flags=re.MULTILINE)]
    assert [(eviction.step, eviction.count) for eviction in eviction_schedule(31, 32, 48, 0.25)] == [
        (n, 4) for n in fed
    ]
    assert len(fed) == 4


def test_the_adapter_of_the_readme_is_loaded(tmp_path, monkeypatch):
    [source] = blocks(ROOT / "README.md", "python")
    (tmp_path / "pte_cli").symlink_to(ROOT / "pte_cli")
    small = ["--sft-steps", "1", "--problems", "2", "--set", "sft.batch=2", "--set", "sampling.rows=2"]
    assert pte("train", *small, "--out", "runs/a", cwd=tmp_path).returncode == 0
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(source, scope)
    saved = load_file(tmp_path / "runs/a/adapter/adapter_model.safetensors")
    loaded = scope["model"].state_dict()
    [name] = [name for name in saved if "layers.0.self_attn.q_proj.lora_B" in name]
    [there] = [key for key in loaded if "layers.0.self_attn.q_proj.lora_B" in key]
    assert saved[name].abs().max() > 0
    assert loaded[there].equal(saved[name])


def test_the_reward_of_the_data_page_works(tmp_path, monkeypatch):
    [source] = blocks(DOCS / "data.md", "python")
    (tmp_path / "my_reward.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    registry = build_registry([("my-reward", EntryPoint("ends-right", "my_reward", "pte"))])
    reward = registry.reward("ends-right").build(None)
    completions, columns = ["so 4", "so 5", "so"], {"answer": ["4", "4", None], "finish": ["stop"] * 3}
    assert reward(["p"] * 3, completions, [[1]] * 3, **columns) == [1, 0, None]


def test_the_file_of_the_sweep_page_can_be_planned():
    example, launch = blocks(DOCS / "sweep.md", "toml")
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
    [source] = blocks(DOCS / "sweep.md", "python")
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
