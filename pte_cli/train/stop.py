"""Being asked to stop: by Ctrl-C, or by a scheduler's SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from pte_cli.interrupts import SIGNALS


class StopRequest:
    """While it is entered, a first signal inside `patiently` only sets `requested`; any other one is KeyboardInterrupt.

    on_request: told once, when the work under way will be finished first. Signals reach Python's main thread only; in
    another one nothing is installed.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self.on_request = on_request
        self.patient = False
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self.before = {which: signal.signal(which, self._handle) for which in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for which, handler in self.before.items():
            signal.signal(which, handler)

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Inside, the work checks `requested` itself."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.patient:
            raise KeyboardInterrupt
        self.requested = True
        self.on_request()
