"""Grading completions against references: the one entry point for rewards, evaluation and recorded files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType

from pte_cli.tasks.grading.exact import Pair, decide
from pte_cli.tasks.grading.outcome import Grade, Reason
from pte_cli.tasks.grading.workers import Pool

SECONDS = 2.0
MEMORY = 400 * 2**20
MOST_WORKERS = 4
BATCH = 1000


@dataclass(frozen=True)
class Item:
    """A completion and the reference it is graded against; `problem` only tells whether a percentage is asked for."""

    reference: str
    completion: str
    problem: str = ""


class Grader:
    """Grades completions, the hard ones in worker processes. Safe to call from any thread.

    workers: processes (default: the processors this process may use, at most 4). seconds: processor time per answer.
    memory: bytes of address space per worker. Workers start with the first answer that needs one and end with `close`.
    """

    def __init__(self, workers: int | None = None, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._pool = Pool(workers or min(MOST_WORKERS, processors()), seconds, memory)
        self._lock = threading.Lock()

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """The grades of `items`, in their order. PteError when the workers can't start."""
        decided = [decide(item.reference, item.completion, item.problem) for item in items]
        # The same pair comes many times over, where samples of a problem agree: once is enough.
        pairs = list(dict.fromkeys(found[0] for found in decided if isinstance(found, tuple)))
        reasons: dict[Pair, Reason] = {}
        if pairs:
            with self._lock:
                reasons = {pairs[i]: reason for i, reason in self._pool.compare(pairs)}
        return [Grade(reasons[found[0]], found[1]) if isinstance(found, tuple) else found for found in decided]

    def stream(self, items: Iterable[Item]) -> Iterator[Grade]:
        """The grades of any number of items, in their order, holding at most `BATCH` of them at a time."""
        remaining = iter(items)
        while batch := list(islice(remaining, BATCH)):
            yield from self.grade(batch)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._pool.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def processors() -> int:
    """The processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
