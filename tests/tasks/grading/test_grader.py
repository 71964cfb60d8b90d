"""Grading in worker processes: limits, threads, signals, closing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pte_cli.errors import PteError
from pte_cli.tasks.grading import Grader, Item, workers
from pte_cli.tasks.grading.exact import Pair

SLOW = r"\sum_{k=1}^{1000000000} k^k"
"""Small enough on paper, never done: only the hard limit ends it."""


def boxed(reference, answer):
    return Item(reference, rf"\boxed{{{answer}}}")


def gone(process):
    """Whether a process ends within five seconds; one that only waits to be collected has ended."""
    for _ in range(50):
        try:
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=2, seconds=1.0) as grader:
        yield grader


def test_order_is_kept_and_slow_answers_are_timeouts(grader):
    items = [boxed("12", SLOW), boxed(r"2\sqrt{5}", r"\sqrt{20}"), boxed("5", "5"), boxed(r"12\pi", "12")]
    assert [grade.reason for grade in grader.grade(items)] == ["timeout", "right", "right", "wrong"]
    assert [grade.reason for grade in grader.stream(items)] == ["timeout", "right", "right", "wrong"]


def test_a_killed_worker_costs_one_answer_only(grader):
    grader.grade([boxed("x^2-1", "(x-1)(x+1)")])
    os.kill(grader._pool.workers[0].child, signal.SIGKILL)
    reasons = [g.reason for g in grader.grade([boxed("x^2-1", "(x+1)(x-1)"), boxed("x^2-4", "(x+2)(x-2)")])]
    assert reasons.count("right") >= 1
    assert set(reasons) <= {"right", "crashed"}
    assert grader.grade([boxed("x^2-1", "(x+1)(x-1)")])[0].right


def test_hostile_answers_from_a_thread_leave_the_callers_alarm_alone(grader):
    hostile = ["1000000000!", r"\dfrac{5^{5^{5^{5^{5}}}}-5}{16}", r"9^{9^{9^{9}}}", SLOW]
    items = [boxed("12", hostile[i % 4] if i % 5 == 0 else f"{i}+x") for i in range(50)]
    fired, results = [], []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.perf_counter()))
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        thread = threading.Thread(target=lambda: results.extend(grader.grade(items)))
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(fired) == 1
    assert 0.5 <= fired[0] - start < 2
    assert time.perf_counter() - start < 30
    assert [grade.reason for grade in results] == ["timeout" if i % 5 == 0 else "wrong" for i in range(50)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded():
    """A worker never has more than it is allowed: an answer that needs it is not right, the next is graded."""
    with Grader(workers=1, seconds=5.0, memory=200 * 2**20) as grader:
        hungry = boxed("12", r"\prod_{k=1}^{200000} (10^{5000}+k)")
        assert not grader.grade([hungry])[0].right
        assert grader.grade([boxed("x^2-1", "(x-1)(x+1)")])[0].right
        for worker in grader._pool.workers:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.child}/status").read_text().splitlines())
            assert int(status["VmPeak"].split()[0]) <= 200 * 1024


def test_closing_ends_every_process_and_the_grader_works_again():
    grader = Grader(workers=1)
    assert grader.grade([boxed("x^2-1", "(x-1)(x+1)")])[0].right
    [worker] = grader._pool.workers
    grader.close()
    assert worker.process.poll() is not None
    assert gone(worker.child)
    assert grader.grade([boxed("x^2-1", "(x-1)(x+1)")])[0].right
    grader.close()


def test_workers_end_when_their_parent_is_killed():
    code = (
        "from pte_cli.tasks.grading import *\n"
        "g = Grader(workers=1)\n"
        r"g.grade([Item('x^2-1', r'\boxed{(x-1)(x+1)}')])" + "\n"
        "print(g._pool.workers[0].process.pid, flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as caller:
        worker = int(caller.stdout.readline())
        caller.kill()
    assert gone(worker)


def test_leaving_in_the_middle_does_not_mix_up_answers(grader):
    pairs = (Pair((f"x+{i}",), f"{i}+x") for i in range(10))
    running = grader._pool.compare(pairs)
    next(running)
    running.close()
    assert [g.reason for g in grader.grade([boxed(r"12\pi", "12"), boxed("x+1", "1+x")])] == ["wrong", "right"]


def test_a_worker_that_cannot_start_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    with Grader(workers=1) as grader, pytest.raises(PteError, match="could not start"):
        grader.grade([boxed("x", "y+1")])


def test_nothing_heavy_is_imported_by_the_caller():
    code = (
        "import sys; from pte_cli.tasks.grading import *; g = Grader()\n"
        r"assert g.grade([Item('x^2-1', r'\boxed{(x-1)(x+1)}')])[0].right; g.close()" + "\n"
        "print([m for m in ('torch', 'sympy', 'math_verify', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
