"""Checkpoints: everything a run needs to go on as if it had never stopped, whole or not there at all.

A checkpoint is written to a hidden folder and renamed when all its files are on the disk; `manifest.json` holds the
size and SHA-256 of each, so that one damaged later is noticed. Tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pte_cli.errors import PteError

MANIFEST = "manifest.json"
STATE = "state.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """state: JSON. tensors: groups of named tensors, a file each (`weights`, `optimizer`, `process-0`, ...)."""

    state: dict[str, Any]
    tensors: dict[str, Tensors]


class Checkpoints:
    """The checkpoints of one run, in `folder`, of which the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def write(self, step: int, checkpoint: Checkpoint) -> Path:
        """Save the state after `step`, then delete old checkpoints. PteError where the disk refuses; none is lost."""
        target = self.folder / f"step-{step:08d}"
        scratch = self.folder / f".{target.name}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            files = {f"{name}.safetensors": save(_plain(group)) for name, group in checkpoint.tensors.items()}
            files[STATE] = json.dumps(checkpoint.state).encode()
            for name, content in files.items():
                _write(scratch / name, content)
            manifest = {name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()}
            _write(scratch / MANIFEST, json.dumps(manifest, indent=2).encode())
            shutil.rmtree(target, ignore_errors=True)
            scratch.replace(target)
            _sync(self.folder)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            newest = self.paths()[-1:]
            last = f"the last checkpoint, {newest[0]}, is whole" if newest else "there is no earlier checkpoint"
            raise PteError(f"the checkpoint of step {step} can't be written ({error.strerror}); {last}") from error
        for old in self.paths()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def paths(self) -> list[Path]:
        """Folders of checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())

    def newest(self, on_broken: Callable[[Path, str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where there is none. on_broken: told each that is not, and why."""
        for path in reversed(self.paths()):
            try:
                return read(path)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                on_broken(path, str(error) or type(error).__name__)
        return None


def read(path: Path) -> Checkpoint:
    """A checkpoint's content. OSError, ValueError or SafetensorError for one that is not whole."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    contents = {}
    for name, (size, digest) in manifest.items():
        content = (path / name).read_bytes()
        if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} is not what was written ({len(content)} of {size} bytes)")
        contents[name] = content
    state = json.loads(contents.pop(STATE))
    return Checkpoint(state, {name.removesuffix(".safetensors"): load(content) for name, content in contents.items()})


def _plain(group: Tensors) -> Tensors:
    """As safetensors takes them: detached, on the CPU, contiguous, each with memory of its own."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in group.items()}


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make a rename in `folder` last, where the system lets us."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
