"""`pte plugins new`: a working plugin package from the templates."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pte_cli.errors import UsageError, did_you_mean
from pte_cli.runs import check_writable

TEMPLATES = "pte_template"
TEMPLATE_NAME = "my-plugin"
KINDS = ("evict", "encoder", "reward")
COMMON = "common"


def write_plugin(name: str, kind: str, folder: Path | None = None) -> list[Path]:
    """Write the package `name` with one plugin of `kind` into `folder` (default: ./NAME); the files, sorted.

    Raises UsageError for an unknown kind, a name that is none, or a folder that holds something already.
    """
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r}: no template; {did_you_mean(kind, KINDS)}")
    check_name(name)
    folder = Path(name) if folder is None else folder
    if not os.path.isfile(folder):
        check_writable("--out", folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--out {str(folder)!r}: exists already; nothing is overwritten, choose another folder")
    source = resources.files(TEMPLATES)
    files: dict[str, str] = {}
    for part in (COMMON, kind):
        _read(source / part, "", files)
    written = []
    try:
        for path, text in sorted(files.items()):
            target = folder / _renamed(path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_renamed(text, name), encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise UsageError(f"--out {str(folder)!r}: {error.strerror}; choose a folder that can be written") from None
    return written


def check_name(name: str) -> None:
    """UsageError unless `name` is a normalised distribution name (PEP 503) whose module's name is free."""
    normal = re.sub(r"[-_.]+", "-", name).strip("-").lower()
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        hint = f"; use {normal!r}" if re.fullmatch(r"[a-z][a-z0-9-]*", normal) else ""
        raise UsageError(f"plugin name {name!r}: lower-case letters, digits and single hyphens, a letter first{hint}")
    module = name.replace("-", "_")
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or module == "tests"
    found = importlib.util.find_spec(module)
    # Without an origin it is a mere folder that happens to lie here.
    if taken or (found is not None and found.origin is not None):
        raise UsageError(f"plugin name {name!r}: there is a module {module!r} already; choose another name")


def _read(place: Traversable, path: str, files: dict[str, str]) -> None:
    """Every file under `place` into `files`, by its path."""
    for entry in place.iterdir():
        below = f"{path}/{entry.name}".lstrip("/")
        if entry.is_dir():
            if entry.name != "__pycache__":
                _read(entry, below, files)
        else:
            files[below] = entry.read_text(encoding="utf-8")


def _renamed(text: str, name: str) -> str:
    """The template's name in all its spellings, replaced: my-plugin, my_plugin, MyPlugin."""
    module = name.replace("-", "_")
    camel = "".join(part.capitalize() for part in name.split("-"))
    return text.replace(TEMPLATE_NAME, name).replace("my_plugin", module).replace("MyPlugin", camel)
