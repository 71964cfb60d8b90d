"""A run's folder: what is in it, and writing it so that a crash leaves no half-written file."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pte_cli.config import RunConfig, read_file, validate
from pte_cli.errors import UsageError

FINISHED, RUNNING, INTERRUPTED, FAILED = "finished", "running", "interrupted", "failed"
RECORDED = ("pte-cli", "torch", "transformers", "peft", "accelerate", "numpy", "safetensors")


class RunDir:
    """One run: its settings, environment, state, metrics and checkpoints, and what it left (docs/runs.md)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDir:
        """A new run's folder, with its configuration and environment; UsageError when it can't be one."""
        run = cls(path)
        run.check_free()
        run._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Without `out`: the same settings start the same run again, somewhere else.
            run.write_json("config.json", config.model_dump(mode="json", exclude={"out"}))
            run.write_json("env.json", environment())
        except OSError as error:
            run.discard()
            raise UsageError(f"--out {str(path)!r}: {error.strerror}; choose a folder that can be written") from None
        return run

    def discard(self) -> None:
        """Take back a `create` whose settings turned out wrong before anything was computed; else do nothing."""
        if any((self.path / name).exists() for name in ("before.json", "metrics.jsonl", "checkpoints")):
            return
        for name in ("config.json", "env.json", "status.json"):
            (self.path / name).unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run; UsageError when there is none."""
        if not (path / "config.json").is_file():
            raise UsageError(f"{str(path)!r} is not a run: it has no config.json")
        return cls(path)

    def check_free(self) -> None:
        """UsageError when a run is already there, or the folder could not be written. Creates nothing."""
        check_writable("--out", self.path)
        if (self.path / "config.json").exists():
            raise UsageError(f"--out {str(self.path)!r}: holds a run already; choose another folder or delete it")

    def check_adapter(self) -> None:
        """UsageError where there is no whole adapter. Only safetensors are ever read: PEFT would also take a pickle."""
        if not (self.adapter / "adapter_config.json").is_file():
            raise UsageError(f"{str(self.path)!r}: has no adapter yet (was its training interrupted?)")
        if not (self.adapter / "adapter_model.safetensors").is_file():
            raise UsageError(
                f"{str(self.path)!r}: its adapter has no adapter_model.safetensors; copy it whole, or train again"
            )

    def config(self) -> RunConfig:
        """The settings the run was made with."""
        try:
            return validate(read_file(self.path / "config.json"))
        except UsageError as error:
            raise UsageError(
                f"{str(self.path)!r}: its settings can't be read ({error}); is it a run of this version of pte?"
            ) from None

    def status(self, state: str, **more: Any) -> None:
        """Say where the run stands: running, finished, interrupted or failed."""
        self.write_json("status.json", {"state": state, "time": _now(), **more})

    def state(self) -> str:
        """What `status` said last; `running` also where the process died without a word."""
        try:
            return str(json.loads((self.path / "status.json").read_text(encoding="utf-8"))["state"])
        except (OSError, ValueError, KeyError, TypeError):
            return RUNNING

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after `step`, which will be made again, and a line that was cut off."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return
        kept = []
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue
        self._replace("metrics.jsonl", "".join(kept))

    def read_json(self, name: str) -> Any:
        """A file that `write_json` wrote; None where there is none."""
        file = self.path / name
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def write_lines(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Write a JSON Lines file of this run whole or not at all."""
        self._replace(name, "".join(json.dumps(record) + "\n" for record in records))

    def write_json(self, name: str, content: Any) -> None:
        """Write a file of this run whole or not at all."""
        self._replace(name, json.dumps(content, indent=2) + "\n")

    def _replace(self, name: str, text: str) -> None:
        target = self.path / name
        scratch = target.with_name(f".{name}.tmp")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(target)


def check_writable(setting: str, folder: Path) -> None:
    """UsageError when `folder`, which need not be there yet, could not be written. Creates nothing."""
    try:
        there = nearest(folder)
        if not there.is_dir():
            raise UsageError(f"{setting} {str(folder)!r}: {str(there)!r} is a file, not a folder; choose another name")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"{setting} {str(folder)!r}: {str(there)!r} is not writable; choose another folder")
    except OSError as error:  # a name that is too long, a loop of links
        raise UsageError(f"{setting} {str(folder)!r}: {error.strerror}; choose another folder") from None


def nearest(path: Path) -> Path:
    """What is there already of `path`: itself or the first parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def is_main_process() -> bool:
    """Whether this process writes and talks: the only one, or the first of those a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def default_out(config: RunConfig) -> Path:
    """runs/TIME-ENCODER-POLICY-IDENTITY, new for every call in another second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{stamp}-{config.encoder.name}-{config.evict.policy}-{config.identity()}"


def environment() -> dict[str, Any]:
    """What a reader needs to run it again: versions, machine, command line."""
    return {
        "time": _now(),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in RECORDED},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
