"""What a stranger does: wheels into a clean environment, a policy of somebody else's, packages from the templates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from pte_cli.scaffold import KINDS

ROOT = Path(__file__).parent.parent
PARTS = ("pte_cli", "plugins", "pyproject.toml", "README.md", "LICENSE")
SMALL = ["--sft-steps", "1", "--problems", "4", "--set", "sft.batch=2", "--set", "sampling.max_new_tokens=32"]
CHECK_ALL = """
import sys
from pte_cli.cli.app import app
codes = []
for name in sys.argv[1:]:
    try: app(["plugins", "check", name])
    except SystemExit as done: codes.append(done.code)
print(codes)
"""


def run(*command, cwd):
    """The output of a command in an environment of its own, on one thread: the models are too small for more."""
    outside = ("PYTHON", "PTE_", "PIP_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python, packages, folder):
    """Build wheels of source folders and install them, without any network."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    folder.mkdir()
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, *packages, cwd=folder)
    options = ["--no-index", "--no-deps", "--ignore-installed"]
    run(*pip, "--python", python, "install", *options, *sorted(folder.glob("*.whl")), cwd=folder)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheels of pte-cli, of keydiff, and of a new package of each kind."""
    folder = tmp_path_factory.mktemp("stranger")
    source = folder / "source"
    source.mkdir()
    for part in PARTS:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, source / part)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # Torch and the like come from this environment; its own pte-cli lies behind the one that is installed here.
    shared = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    Path(site, "shared.pth").write_text("\n".join(shared) + "\n")
    install(python, [source, source / "plugins" / "pte-evict-keydiff"], folder / "wheels")
    where = run(python, "-c", "import pte_cli, pte_plugins; print(pte_cli.__file__, pte_plugins.__file__)", cwd=folder)
    assert all(path.startswith(site) for path in where.split()), "the wheel is what is tested"
    for kind in KINDS:
        run(python, "-m", "pte_cli", "plugins", "new", f"new-{kind}", "--kind", kind, cwd=folder)
    install(python, [folder / f"new-{kind}" for kind in KINDS], folder / "more-wheels")
    return python


def test_everything_is_found(python, tmp_path):
    listed = json.loads(run(python, "-m", "pte_cli", "plugins", "list", "--json", cwd=tmp_path))
    assert listed["errors"] == []
    found = {(plugin["kind"], plugin["qualified"]) for plugin in listed["plugins"]}
    assert {("evict", "pte-evict-keydiff:keydiff"), ("evict", "pte-cli:sliding"), ("task", "pte-cli:recall")} <= found
    assert {(kind, f"new-{kind}:new-{kind}") for kind in KINDS} <= found


def test_training_with_somebody_elses_policy(python, tmp_path):
    command = ["train", "--evict", "keydiff", "--set", "evict.recent=2", *SMALL, "--out", "run", "--json"]
    result = json.loads(run(python, "-m", "pte_cli", *command, cwd=tmp_path))
    assert result["steps"] == 1
    assert result["after"]["evictions"] > 0
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (settings["evict"]["policy"], settings["evict"]["options"]) == ("keydiff", {"recent": 2})


def test_keydiff_passes_its_own_tests(python, tmp_path):
    tests = ROOT / "plugins" / "pte-evict-keydiff" / "tests"
    assert "20 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=tmp_path)


def test_new_packages_pass_the_contract_as_they_are(python, tmp_path):
    shown = run(python, "-c", CHECK_ALL, *(f"new-{kind}" for kind in KINDS), cwd=tmp_path).splitlines()
    assert shown.pop() == "[0, 0, 0]"
    assert len(shown) == 9 + 9 + 5
    assert all(line.startswith("pass  ") for line in shown)
