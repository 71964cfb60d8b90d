"""Public bug reports of graders and scores, each as a small input with the right outcome."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cases.casework import rows_file
from running import pte


def grade(folder, rows, *more):
    rows_file(folder / "graded.jsonl", rows)
    return pte("eval", "--grade", "graded.jsonl", *more, cwd=folder)


def test_b21_references_without_dollar_signs_are_read_whole(tmp_path):
    r"""Math-Verify#74, #27: `2\sqrt{5}` becomes 2 and `\text{odd}` becomes nothing."""
    pairs = [(r"2\sqrt{5}", r"2\sqrt{5}"), (r"2\sqrt{5}", "2"), (r"\text{odd}", r"\text{odd}"), ("1,3,5", "5,3,1")]
    rows = [
        {"id": str(i), "problem": "?", "answer": reference, "completion": rf"so \boxed{{{answer}}}"}
        for i, (reference, answer) in enumerate(pairs)
    ]
    done = grade(tmp_path, rows, "--out", "out.jsonl")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["score"] for row in found] == [1, 0, 1, 1]


HUGE = r"""
import json, resource, signal, threading, time
from pte_cli.tasks.grading import Grader, Item

hostile = {7: "1000000000!", 31: r"\dfrac{5^{5^{5^{5^{5}}}}-5}{16}"}
items = [Item("12", rf"\boxed{{{hostile.get(i, f'{i}+x')}}}") for i in range(50)]
fired, found = [], []
signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
start = time.perf_counter()
signal.setitimer(signal.ITIMER_REAL, 0.2)
with Grader(workers=4, seconds=0.5) as grader:
    thread = threading.Thread(target=lambda: found.extend(grader.grade(items)))
    thread.start()
    thread.join()
    again = grader.grade(items[:10])
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "found": [grade.reason for grade in found],
    "again": [grade.reason for grade in again],
    "fired": len(fired),
    # In KiB on Linux: of the largest process that has ended.
    "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
}))
"""


def test_b23_huge_powers_cost_their_own_answer_only():
    """Math-Verify#50, #65, #63: no limit outside the main thread; one power hangs the run or fills the memory.

    In a process of its own, whose children are the graders alone.
    """
    done = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    expected = ["timeout" if i in (7, 31) else "wrong" for i in range(50)]
    assert (found["found"], found["again"]) == (expected, expected[:10])
    assert found["fired"] == 1
    assert found["seconds"] < 30
    assert found["memory"] < 2**20


def test_b24_more_samples_than_there_are_is_refused(tmp_path):
    """lighteval#771: missing samples count as wrong."""
    right, wrong = r"\boxed{2}", r"\boxed{3}"
    rows = [
        {"id": "a", "problem": "?", "answer": "2", "completions": [right, right, wrong, wrong]},
        {"id": "b", "problem": "?", "answer": "2", "completions": [right, wrong, wrong, wrong]},
    ]
    done = grade(tmp_path, rows, "--k", "1,2,4", "--json")
    document = json.loads(done.stdout)
    # By hand: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2.
    assert {k: found["mean"] for k, found in document["pass_at"].items()} == pytest.approx(
        {"1": 0.375, "2": 2 / 3, "4": 1.0}
    )
    assert document["problems"] == document["pass_at"]["2"]["n"] == 2
    refused = grade(tmp_path, rows, "--k", "8")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "k = 8: graded.jsonl has 4 samples of a problem; k can be 1 to 4" in refused.stderr
    one = grade(tmp_path, rows[:1], "--k", "1,2")
    assert one.returncode == 0
    assert one.stdout.count("(no interval)") == 3
