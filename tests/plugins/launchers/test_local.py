"""Runs as local processes."""

from __future__ import annotations

import os
import sys
import time

from pte_cli.registry import build, load_registry

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def launcher():
    return build(load_registry().launcher("local"), {})


def wait(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(pid):
    """Whether a process runs; one that ended and only waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_job_runs_with_its_environment_and_logs_both_streams(tmp_path):
    code = (
        "import os, sys; print(os.environ['MINE'], os.environ['PATH'] != ''); sys.stderr.write('bad\\n'); sys.exit(3)"
    )
    log = tmp_path / "logs" / "job.log"
    job = launcher().submit([sys.executable, "-c", code], log=log, environment={"MINE": "7"})
    assert wait(lambda: job.poll() is not None)
    assert job.poll() == 3
    assert sorted(log.read_text().splitlines()) == ["7 True", "bad"]
    job.cancel()  # after the end: nothing happens
    assert job.poll() == 3


def test_cancelling_reaches_what_the_job_started(tmp_path):
    log = tmp_path / "job.log"
    job = launcher().submit([sys.executable, "-c", PARENT], log=log, environment={})
    assert wait(lambda: log.read_text().strip() != "")
    child = int(log.read_text())
    assert job.poll() is None
    assert os.getpgid(child) == job.process.pid != os.getpgid(0)
    job.cancel()
    assert wait(lambda: job.poll() is not None)
    assert job.poll() == -15
    assert wait(lambda: not alive(child))
