"""`pte plugins`, and the program in the company of broken plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from running import pte as here

HEAD = "from pte_cli import hookimpl\nfrom pte_cli.api import EvictionSpec\n"
HOOK = HEAD + "@hookimpl\ndef pte_eviction_policies():\n    "
BROKEN = {
    "no-module": ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'", 1),
    "quits": ("print('loud')\nraise SystemExit('no licence')\n", "SystemExit: no licence", 2),
    "raises": (HOOK + "raise ValueError('two\\nlines')\n", "ValueError: two lines", 5),
    "old": (HOOK + "return [EvictionSpec('old', '', None, api=0)]\n", "was written for plugin API 0", None),
    "bad-options": (HOOK + "return [EvictionSpec('o', '', None, options=dict)]\n", "are not a pydantic model", None),
    "twice": (
        HOOK + "return [EvictionSpec('t', '', None)] * 2\n",
        "announces a second eviction policy called 't'",
        None,
    ),
}
GOOD = (
    '"""Small keys leave."""\n' + HEAD + "from pydantic import BaseModel, Field\n"
    "class Options(BaseModel):\n    size: int = Field(3, description='how many')\n"
    "class Policy:\n    granularity, bounded = 'uniform', True\n"
    "    def __init__(self, options): print('noise'); self.size = options.size\n"
    "    def score(self, view): print('noise'); return {score}\n"
    "@hookimpl\ndef pte_eviction_policies(): return [EvictionSpec('mine', 'summary', Policy, Options)]\n"
)


@pytest.fixture
def install(tmp_path):
    """Puts a distribution with one module on the path of `pte`, and runs that."""
    place = tmp_path / "installed"

    def add(name, source):
        module = name.replace("-", "_")
        info = place / f"{module}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[pte]\nentry-{name} = {module}\n")
        (place / f"{module}.py").write_text(source)

    def pte(*arguments, **environment):
        return subprocess.run(
            [sys.executable, "-m", "pte_cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(place), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    add.pte = pte
    return add


def test_with_six_broken_plugins_the_program_works_and_explains(install):
    for name, (source, _, _) in BROKEN.items():
        install(name, source)
    done = install.pte("train", "--dry-run", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["config"]["evict"]["policy"] == "sliding"
    lines = [line for line in done.stderr.splitlines() if line != "loud"]
    assert len(lines) == len(BROKEN)
    for name, (_, reason, _) in BROKEN.items():
        [line] = [line for line in lines if line.startswith(f"plugin entry-{name} of {name} left out: ")]
        assert reason in line
    shown = install.pte("plugins", "list", "--errors").stdout
    listed = json.loads(install.pte("plugins", "list", "--json").stdout)
    assert {error["distribution"] for error in listed["errors"]} == set(BROKEN)
    for name, (_, reason, line) in BROKEN.items():
        assert f"entry-{name} of {name}" in shown
        assert reason in shown
        if line is not None:
            assert f"{name.replace('-', '_')}.py:{line}\n" in shown
    assert [p["name"] for p in listed["plugins"] if p["qualified"] == "twice:t"] == ["t"]


def test_the_allow_list_keeps_plugins_out_unimported(install):
    install("quits", BROKEN["quits"][0])
    install("fine", GOOD.format(score="view.positions"))
    done = install.pte("plugins", "list", "--json", PTE_PLUGINS="fine:mine,missing")
    assert done.stderr == "PTE_PLUGINS: 'missing' names no installed plugin\n"
    names = {plugin["qualified"] for plugin in json.loads(done.stdout)["plugins"]}
    assert {"fine:mine", "pte-cli:sliding", "pte-cli:recall"} <= names
    done = install.pte("train", "--evict", "mine", "--dry-run", PTE_PLUGINS="")
    assert (done.returncode, done.stderr) == (
        2,
        "error: evict.policy = 'mine': no such plugin; did you mean 'sink'? Known: full, importance, sink, sliding\n",
    )


def test_list_and_info(install):
    install("fine", GOOD.format(score="view.positions"))
    table = install.pte("plugins", "list", "--kind", "evict", COLUMNS="120").stdout
    assert "fine:mine" in table
    assert "pte-cli:sliding" in table
    assert "pte-cli:recall" not in table
    assert install.pte("plugins", "list", "--errors").stdout == "no plugin was left out\n"
    document = json.loads(install.pte("plugins", "info", "mine", "--json").stdout)
    assert (document["kind"], document["qualified"], document["version"]) == ("evict", "fine:mine", "1.5")
    assert document["doc"] == "Small keys leave."
    assert document["file"].endswith("installed/fine.py")
    assert document["options"]["properties"]["size"]["default"] == 3
    text = install.pte("plugins", "info", "mine", COLUMNS="120").stdout
    assert "Small keys leave." in text
    assert [part.strip() for part in text.splitlines()[-1].split("│")] == ["size", "int", "3", "how many"]
    done = install.pte("plugins", "info", "none")
    assert "forget what is evicted" in done.stdout
    assert install.pte("plugins", "info", "slidin").stderr.startswith(
        "error: plugin = 'slidin': no such plugin; did you mean 'sliding'"
    )
    done = install.pte("plugins", "list", "--kind", "evct")
    assert (done.returncode, done.stderr[:52]) == (2, "error: --kind 'evct': no such kind; did you mean 'ev")


def test_check_says_pass_or_fail_for_each(install):
    done = install.pte("plugins", "check", "recall", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["kind"], document["passed"]) == ("task", True)
    assert [check["passed"] for check in document["checks"]] == [True] * 3
    done = install.pte("plugins", "check", "recall", "--set", "queries=13")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: task.options.queries = 13: at most task.entries = 12 can be asked for\n"
    install("bad", GOOD.format(score="-view.positions"))
    done = install.pte("plugins", "check", "mine", "--set", "size=5")
    assert done.returncode == 1
    assert "noise" in done.stderr
    lines = done.stdout.splitlines()
    assert [line[:6] for line in lines] == ["pass  "] * 3 + ["FAIL  "] + ["pass  "] * 5
    assert lines[3].startswith("FAIL  newest_kept: the newest token, at position")
    assert "eviction policy bad:mine: 1 of 9 checks failed" in done.stderr


def test_new_writes_a_package_once(install, tmp_path):
    done = install.pte("plugins", "new", "my-own", "--kind", "reward", "--out", "there", "--json")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["files"]
    assert written == ["there/README.md", "there/my_own.py", "there/pyproject.toml", "there/tests/test_my_own.py"]
    text = "".join((tmp_path / file).read_text() for file in written)
    assert 'my-own = "my_own"' in text
    assert "class MyOwn" in text
    assert not [word for word in ("my-plugin", "my_plugin", "MyPlugin") if word in text]
    again = install.pte("plugins", "new", "my-own", "--kind", "evict", "--out", "there")
    assert again.returncode == 2
    assert again.stderr == "error: --out 'there': exists already; nothing is overwritten, choose another folder\n"
    assert (tmp_path / "there" / "my_own.py").read_text() in text


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["list", "--errors", "--json"], ["info", "pte"], ["new", "my-own", "--kind", "evict"]],
    ids=str,
)
def test_only_check_imports_torch(arguments, tmp_path):
    code = (
        "import sys\nfrom pte_cli.cli.app import app\n"
        f"try: app(['plugins', *{arguments!r}])\nexcept SystemExit as done: assert not done.code, done.code\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_built_in_ones_in_this_process(tmp_path):
    listed = json.loads(here("plugins", "list", "--kind", "evict", "--json", cwd=tmp_path).stdout)
    assert {"full", "importance", "sink", "sliding"} <= {row["name"] for row in listed["plugins"]}
    told = json.loads(here("plugins", "info", "sink", "--json", cwd=tmp_path).stdout)
    assert told["options"]["properties"]["n_sink"]["default"] == 4
    shown = here("plugins", "info", "full", cwd=tmp_path).stdout
    assert "eviction policy full: " in shown
    assert shown.endswith("no options\n")
    assert here("plugins", "list", "--errors", cwd=tmp_path).stdout.startswith("no plugin was left out")
    made = json.loads(here("plugins", "new", "my-x", "--kind", "reward", "--json", cwd=tmp_path).stdout)
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()) == made["files"]
