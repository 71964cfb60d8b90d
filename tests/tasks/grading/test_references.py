"""Every reference of the benchmarks accepts itself, wrong answers made from it are rejected, and the known cases."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pte_cli.tasks.grading import Grader, Item
from pte_cli.tasks.grading.exact import Pair
from pte_cli.tasks.grading.normalize import key, normalize
from pte_cli.tasks.grading.quantity import quantity

SHARED = Path(__file__).parents[3].parent / "shared"
BENCHMARKS = SHARED / "data" / "benchmarks"
CASES = SHARED / "cases" / "grading.tsv"
needs_data = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason=f"no benchmark data beside the repository ({BENCHMARKS})"
)
NO_SYMBOLIC_FORM = {"minerva/27", "olympiadbench/1782", "olympiadbench/1965", "olympiadbench/2045"}
"""References that can only be matched as text: a product of quotients, a name `max`, a sentence, half an interval."""


@pytest.fixture(scope="module")
def rows():
    return [json.loads(line) for file in sorted(BENCHMARKS.glob("*.jsonl")) for line in file.open()]


@pytest.mark.skipif(not CASES.is_file(), reason=f"no cases beside the repository ({CASES})")
def test_known_cases():
    cases = [line.rstrip("\n").split("\t") for line in CASES.open()][1:]
    assert len(cases) >= 28
    with Grader() as grader:
        grades = grader.grade([Item(reference, completion) for reference, completion, *_ in cases])
    wrong = [case for case, grade in zip(cases, grades, strict=True) if grade.right != (case[2] == "right")]
    assert not wrong


@needs_data
def test_every_reference_accepts_itself(rows):
    assert len(rows) == 5866
    with Grader() as grader:
        items = [Item(row["answer"], rf"so $\boxed{{{row['answer']}}}$.", row["problem"]) for row in rows]
        assert [row["id"] for row, grade in zip(rows, grader.stream(items), strict=True) if not grade.right] == []


@needs_data
@pytest.mark.slow
def test_every_reference_accepts_itself_by_mathematics_too(rows):
    """Past the comparison of texts: what math-verify reads in a reference equals itself."""
    texts = [normalize(row["answer"]) for row in rows]
    pairs = list(dict.fromkeys(Pair((text,), text) for text in texts))
    with Grader(seconds=10) as grader:
        reasons = {pairs[i].answer: reason for i, reason in grader._pool.compare(pairs)}
    failed = {row["id"]: reasons[text] for row, text in zip(rows, texts, strict=True) if reasons[text] != "right"}
    assert failed == dict.fromkeys(NO_SYMBOLIC_FORM, "no_reference")


def controls(row, other):
    """Wrong answers to a problem: another problem's, a changed number, and half of what the reference says."""
    answer = row["answer"]
    if key(normalize(other)) != key(normalize(answer)):
        yield other
    number = quantity(normalize(answer))
    if number is not None:
        yield str(number.value + 1)
        if number.value:
            yield str(-number.value)
    elif first := re.search(r"\d+", answer):
        yield answer[: first.start()] + str(int(first[0]) + 1) + answer[first.end() :]
        yield first[0]


SAME = {
    *(f"math500/test/number_theory/{n}" for n in (864, 46, 516, 847, 1257, 368)),  # 52_8 and 52: the base is given
    *("math500/test/algebra/1837", "math500/test/algebra/2193"),  # 5 and x=5
    *("olympiadbench/1675", "olympiadbench/2029", "olympiadbench/2177"),  # k=1 and 1, f(x)=1 and 1
    *("olympiadbench/2185", "olympiadbench/2276"),  # 6m and 6; 8 \% and 8
}
"""Where a control happens to be right."""


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("minerva", "olympiadbench") else name
        for name in ("aime24", "aime25", "amc23", "gsm8k_test", "math500", "minerva", "olympiadbench", "train_small")
    ],
)
def test_wrong_answers_are_rejected(name):
    rows = [json.loads(line) for line in (BENCHMARKS / f"{name}.jsonl").open()]
    names, items = [], []
    for i, row in enumerate(rows):
        for answer in controls(row, rows[(i + 1) % len(rows)]["answer"]):
            names.append(row["id"])
            items.append(Item(row["answer"], rf"\boxed{{{answer}}}", row["problem"]))
    assert len(items) > 2 * len(rows)
    with Grader() as grader:
        accepted = [name for name, grade in zip(names, grader.stream(items), strict=True) if grade.right]
    assert sorted(accepted) == sorted(problem for problem in SAME if problem.startswith(f"{name}/"))
