"""What is there to work with: versions, devices, plugins, folders, the hub, and what is missing for which feature.

Nothing here loads a model, and nothing waits longer than `HUB_SECONDS` for a network. Only `devices` imports torch.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from pte_cli import __version__
from pte_cli.registry import BUILTIN, load_registry
from pte_cli.runs import nearest

HUB_SECONDS = 3.0
HUB = "https://huggingface.co"
FEATURES = {
    "4bit": "a base model in 4 bits (model.quantization=4bit)",
    "gguf": "models from GGUF files",
    "gym": "reasoning-gym tasks as data (--data gym:NAME)",
    "plots": "pictures: pte report, pte profile --out, the report of a sweep",
    "slurm": "sweeps through Slurm",
    "docs": "building the documentation",
    "dev": "the tests",
}
"""What each extra is for."""


def examine() -> dict[str, Any]:
    """Everything, ready for JSON. `problems` are what keeps pte from working at all: one line each."""
    asked = HubQuestion()
    packages, features = requirements()
    registry = load_registry()
    found_devices, device_problem = devices()
    folders = [folder(*place) for place in places()]
    problems = [
        f"{row['name']} {row['version'] or 'is not installed'}: pte needs {row['needs']}"
        for row in packages
        if not row["fits"]
    ]
    problems += [] if packages else ["pte-cli is not installed, so no plugin is found; pip install -e ."]
    problems += [device_problem] if device_problem else []
    problems += [f"{row['path']}: can't be written ({row['for']})" for row in folders if not row["writable"]]
    return {
        "pte": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": packages,
        "devices": found_devices,
        "plugins": {
            "found": len(registry.found),
            "errors": [vars(error) for error in registry.errors],
            "warnings": list(registry.warnings),
        },
        "folders": folders,
        "hub": asked.answer(),
        "features": features,
        "problems": problems,
    }


def requirements() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What pte itself needs, and what each extra does, as its own metadata says, with what is installed."""
    own: list[dict[str, Any]] = []
    extras: dict[str, list[dict[str, Any]]] = {name: [] for name in FEATURES}
    for text in needed():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            own.append(package(requirement))
        else:
            for name in extras:
                if requirement.marker.evaluate({"extra": name}):
                    extras[name].append(package(requirement))
    features = [
        {
            "extra": name,
            "for": FEATURES[name],
            "missing": [row["name"] for row in rows if not row["fits"]],
            "install": f"pip install '{BUILTIN}[{name}]'",
        }
        for name, rows in extras.items()
    ]
    return own, features


def needed() -> list[str]:
    """What the installed pte says it requires; nothing where its folder is used without being installed."""
    try:
        return requires(BUILTIN) or []
    except PackageNotFoundError:
        return []


def package(requirement: Requirement) -> dict[str, Any]:
    """A package, the version that is installed (None: none) and whether it is one that will do."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        installed = None
    fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
    return {
        "name": requirement.name,
        "version": installed,
        "needs": str(requirement.specifier) or "any version",
        "fits": fits,
    }


def devices() -> tuple[list[dict[str, Any]], str | None]:
    """What torch can compute on, `auto` first, and why it can't at all. Imports torch."""
    try:
        import torch
    except Exception as error:  # a broken installation can raise anything
        return [], f"torch can't be imported: {type(error).__name__}: {error}"
    found: list[dict[str, Any]] = [
        {
            "device": f"cuda:{i}",
            "name": torch.cuda.get_device_name(i),
            "bytes": torch.cuda.get_device_properties(i).total_memory,
        }
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": platform.processor() or "Apple GPU", "bytes": None})
    cpu = f"{os.cpu_count()} CPUs, {torch.get_num_threads()} threads"
    return [*found, {"device": "cpu", "name": cpu, "bytes": memory_bytes()}], None


def memory_bytes() -> int | None:
    """Main memory of this machine; None where the system doesn't say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def places() -> list[tuple[str, Path]]:
    """Where pte writes: what for, and the folder."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return [
        ("runs", Path("runs").absolute()),
        ("models from the hub", Path(os.environ.get("HF_HUB_CACHE") or home / "hub")),
        ("temporary files", Path(tempfile.gettempdir())),
    ]


def folder(purpose: str, path: Path) -> dict[str, Any]:
    """Whether a folder can be written, or made, and the bytes that are free there."""
    there = nearest(path)
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return {"for": purpose, "path": str(path), "writable": writable, "free_bytes": shutil.disk_usage(there).free}


class HubQuestion:
    """Asks the hub whether it answers, meanwhile and for at most `HUB_SECONDS`: a name server may never answer."""

    def __init__(self) -> None:
        self.endpoint = os.environ.get("HF_ENDPOINT", HUB)
        self.offline = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_set(name)), None)
        self.found: tuple[str, str] | None = None
        self.until = time.monotonic() + HUB_SECONDS
        self.thread = threading.Thread(target=self._ask, daemon=True)
        if self.offline is None:
            self.thread.start()

    def _ask(self) -> None:
        try:
            request = urllib.request.Request(self.endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=HUB_SECONDS):
                self.found = ("reachable", "")
        except urllib.error.HTTPError as error:
            self.found = ("reachable", f"answers with {error.code}")
        except (OSError, ValueError) as error:
            self.found = ("unreachable", str(getattr(error, "reason", error)))

    def answer(self) -> dict[str, str]:
        """state: reachable, unreachable, or offline where the environment forbids to ask."""
        if self.offline is not None:
            state, reason = "offline", f"{self.offline} is set"
        else:
            self.thread.join(max(0.0, self.until - time.monotonic()))
            state, reason = self.found or ("unreachable", f"no answer within {HUB_SECONDS:g} seconds")
        return {"endpoint": self.endpoint, "state": state, "reason": reason}


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
