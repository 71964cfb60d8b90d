"""`python -m pte_cli.sweep.guard LOCK COMMAND...`: becomes COMMAND, holding a lock that ends with the process.

The kernel lets go of the lock however the process ends, so a later sweep can tell a run that still works from one that
was killed, without trusting process ids.
"""

from __future__ import annotations

import fcntl
import os
import sys

BUSY = 75
"""Exit status where another process holds the lock (EX_TEMPFAIL)."""


def main(lock: str, *command: str) -> None:
    """Take the lock, then replace this process by the command."""
    os.makedirs(os.path.dirname(lock) or ".", exist_ok=True)
    file = os.open(lock, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"{lock}: another process is at work on this run\n")
        sys.exit(BUSY)
    os.set_inheritable(file, True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
