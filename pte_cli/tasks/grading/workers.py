"""A pool of worker processes with a hard limit per answer.

Works from any thread and leaves the caller's signals and timers alone: limits are the kernel's, set inside the workers
(`worker.py`). They are programs of their own, not forks of the caller, so the caller's threads, GPU and memory stay
out of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pte_cli
from pte_cli.errors import PteError
from pte_cli.tasks.grading.exact import Pair
from pte_cli.tasks.grading.outcome import Reason

START_SECONDS = 120.0
WALL_FACTOR = 10.0
"""Elapsed time an answer may take, as a multiple of its processor time: only a stuck machine gets there."""


class Worker:
    """One worker process; `busy`: the number of its job, if any. `child`: its current fork's process id."""

    def __init__(self, seconds: float, memory: int) -> None:
        root = str(Path(pte_cli.__file__).parent.parent)
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pte_cli.tasks.grading.worker", str(seconds), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C reaches the caller only; closing ends the whole group
        )
        self.process = process
        self.input, self.output = _descriptor(process.stdin), _descriptor(process.stdout)
        self.stop = weakref.finalize(self, _kill, process)
        self.busy: int | None = None
        self.ready = False
        self.child = 0
        self.deadline = time.monotonic() + START_SECONDS
        self.pending = b""

    def submit(self, job: int, pair: Pair, wall: float) -> None:
        request = {"id": job, "references": pair.references, "answer": pair.answer}
        with contextlib.suppress(BrokenPipeError):  # a worker that is gone is noticed when its answer is read
            os.write(self.input, json.dumps(request, ensure_ascii=False).encode(errors="replace") + b"\n")
        self.busy, self.deadline = job, time.monotonic() + wall

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None when the process has ended."""
        chunk = os.read(self.output, 1 << 16)
        *lines, self.pending = (self.pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines] if chunk else None


def _descriptor(stream: IO[bytes] | None) -> int:
    return -1 if stream is None else stream.fileno()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker, its child included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class Pool:
    """`workers` processes, started when the first pair comes. Use it from one thread at a time."""

    def __init__(self, workers: int, seconds: float, memory: int) -> None:
        self.size, self.seconds, self.memory = workers, seconds, memory
        self.workers: list[Worker] = []
        self.owner = os.getpid()

    def compare(self, pairs: Iterable[Pair]) -> Iterator[tuple[int, Reason]]:
        """(index, reason) of each pair as it is done, in any order; a pair is drawn when a worker is free for it."""
        if self.owner != os.getpid():  # the caller has forked: the workers belong to its parent
            self.workers, self.owner = [], os.getpid()
        waiting = enumerate(pairs)
        drawn = next(waiting, None)
        try:
            while drawn is not None or self._busy():
                while drawn is not None and (free := self._free()) is not None:
                    free.submit(*drawn, WALL_FACTOR * self.seconds)
                    drawn = next(waiting, None)
                yield from self._collect()
        finally:
            for worker in self._busy():  # left in the middle, by an error or Ctrl-C
                self._drop(worker)

    def close(self) -> None:
        """End every worker. The pool can be used again."""
        for worker in list(self.workers):
            self._drop(worker)

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.busy is not None]

    def _free(self) -> Worker | None:
        """A worker without a job; where there is none, one more is started unless that is going on already."""
        idle = next((worker for worker in self.workers if worker.ready and worker.busy is None), None)
        if idle is None and len(self.workers) < self.size and all(worker.ready for worker in self.workers):
            self.workers.append(Worker(self.seconds, self.memory))
        return idle

    def _drop(self, worker: Worker) -> None:
        self.workers.remove(worker)
        if worker.busy is None and worker.process.stdin is not None:
            worker.process.stdin.close()  # an idle worker ends by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(0.5)
        worker.stop()

    def _collect(self) -> Iterator[tuple[int, Reason]]:
        """Wait for messages until some have come or the first deadline has passed."""
        with selectors.DefaultSelector() as selector:
            awaited = [worker for worker in self.workers if worker.busy is not None or not worker.ready]
            for worker in awaited:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            first = min(worker.deadline for worker in awaited)
            arrived = [key.data for key, _ in selector.select(max(0.0, first - time.monotonic()))]
        for worker in arrived:
            messages = worker.read()
            if messages is None:
                yield from self._lost(worker, "crashed")
            for message in messages or ():
                yield from self._take(worker, message)
        for worker in awaited:
            if worker not in arrived and time.monotonic() > worker.deadline:
                yield from self._lost(worker, "timeout")

    def _take(self, worker: Worker, message: dict[str, Any]) -> Iterator[tuple[int, Reason]]:
        if "failed" in message:
            self._drop(worker)
            raise PteError(f"the grading worker could not start: {message['failed']}")
        if message.get("died") == "crashed":
            # Whether it died with the request or before it is not known; a fresh process can't answer an old one.
            yield from self._lost(worker, "crashed")
            return
        if "ready" in message:
            worker.ready, worker.child = True, message["ready"]
        if worker.busy is not None and (reason := message.get("reason") or message.get("died")):
            job, worker.busy = worker.busy, None
            yield job, reason

    def _lost(self, worker: Worker, reason: Reason) -> Iterator[tuple[int, Reason]]:
        self._drop(worker)
        if not worker.ready:
            raise PteError("the grading worker could not start: is math-verify installed for this Python?")
        if worker.busy is not None:
            yield worker.busy, reason
