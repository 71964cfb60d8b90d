"""The process that compares answers: `python -m pte_cli.tasks.grading.worker SECONDS BYTES`.

It loads math-verify once and forks; the child reads one JSON request a line on stdin and answers with one line. When
the kernel ends a child because an answer took too much processor time, the parent says so and forks the next, in
milliseconds. Nothing else runs in either process, so forking is safe, and no other process's signals are involved.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

READ = 1 << 16


def main(seconds: float, memory: int) -> None:
    """Fork children until stdin ends. seconds: processor time per answer. memory: bytes of address space."""
    channel = os.dup(sys.stdout.fileno())
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())  # what libraries print is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    try:
        load()
    except Exception as error:
        send(channel, {"failed": f"{type(error).__name__}: {error}"})
        return
    died = None
    while True:
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            send(channel, {"ready": os.getpid(), "died": died})
            serve(channel, seconds)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        died = "timeout" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else "crashed"


def load() -> None:
    """Import what comparing needs and use it once, so that children start warm."""
    import logging

    from pte_cli.tasks.grading.verify import verify

    logging.disable(logging.CRITICAL)
    verify(["x^2+1"], r"\frac{1}{2}")


def serve(channel: int, seconds: float) -> None:
    """Answer requests until stdin ends."""
    from pte_cli.tasks.grading.verify import verify

    for request in requests(sys.stdin.fileno()):
        # The default action of SIGPROF ends the process, even inside one long operation on a huge integer.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reason: str = verify(request["references"], request["answer"])
        except MemoryError:
            reason = "timeout"
        except Exception:
            reason = "unparsable"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        send(channel, {"id": request["id"], "reason": reason})


def requests(descriptor: int) -> Iterator[dict[str, Any]]:
    """The requests of a stream of lines, read without a buffer that a killed child would take with it."""
    pending = b""
    while chunk := os.read(descriptor, READ):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from map(json.loads, lines)


def send(channel: int, message: dict[str, Any]) -> None:
    """One line in one write, so that no half line is left behind."""
    os.write(channel, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
