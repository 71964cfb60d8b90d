"""How the code is laid out: imports run one way, files stay small, strategies arrive through the registry only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pte_cli"
ORDER = [
    "errors",
    "interrupts",
    "budget",
    "api",
    "config",
    "registry",
    "tasks",
    "model",
    "rollout",
    "train",
    "testing",
    "eval",
    "export",
    "profile",
    "report",
    "sweep",
    "cli",
]
"""Top to bottom: a package may import those before it, never those after it."""
AT_THE_SIDE = {
    "runs": "config",
    "plugin_options": "config",
    "setting_errors": "config",
    "scaffold": "config",
    "checks": "model",
    "doctor": "registry",
    "__main__": "cli",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def place(module: str) -> int | None:
    """The rank of `pte_cli.X...` in ORDER; None for the package itself."""
    parts = module.split(".")
    if len(parts) < 2:
        return None
    return ORDER.index(AT_THE_SIDE.get(parts[1], parts[1]))


def imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way(file):
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    here = place(module)
    for name in imports(file):
        assert not name.startswith("pte_plugins"), f"{module} imports {name}"
        if name.startswith("pte_cli.") and here is not None:
            assert place(name) <= here, f"{module} imports {name}"


@pytest.mark.parametrize(
    "file",
    [*FILES, *(file for part in ("plugins", "benchmarks") for file in sorted((ROOT / part).rglob("*.py")))],
    ids=lambda f: f.name,
)
def test_files_stay_small(file):
    assert len(file.read_text().splitlines()) <= 400
