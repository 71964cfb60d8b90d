"""Which text counts as the answer of a completion."""

from __future__ import annotations

import time

import pytest

from pte_cli.tasks.grading.extract import extract, reference_text
from pte_cli.tasks.grading.outcome import Grade


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{12}", "12"),
        (r"\fbox{12}", "12"),
        (r"\boxed {12}", "12"),
        (r"$\boxed 3$", "3"),
        (r"\boxed{\frac{1}{2}} and so on}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
        (r"a slip \boxed{3 and then \boxed{4}", "4"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{1}<think>is it?</think> Yes.", "1"),
        (r"thinking began in the prompt \boxed{1}</think> \boxed{2}", "2"),
        (r"<think>a<think>b</think>\boxed{5}", "5"),
    ],
)
def test_the_last_box_outside_the_reasoning(completion, answer):
    assert extract(completion) == answer


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", "no_box"),
        ("On page 12 nothing", "no_box"),
        (r"\boxedfoo{3}", "no_box"),
        (r"<think>maybe \boxed{12}</think> I am not sure.", "no_box"),
        (r"it was \boxed{1} in the prompt's reasoning</think> hm", "no_box"),
        (r"\boxed{3}. Wait: <think> again", "open_think"),
        (r"\boxed{3}. Wait, redo: \boxed{", "cut_off"),
        (r"\boxed{3}. Wait, redo: \boxed", "cut_off"),
        (r"\boxed{\frac{1}{2", "cut_off"),
        (r"\boxed{4\}", "cut_off"),
        (r"\boxed{}", "empty_box"),
        (r"\boxed{3} no: \boxed{ \, }", "empty_box"),
    ],
)
def test_no_answer_has_a_reason_and_score_0(completion, reason):
    grade = extract(completion)
    assert isinstance(grade, Grade)
    assert (grade.reason, grade.score) == (reason, 0.0)


def test_linear_in_the_length_of_hostile_text():
    start = time.perf_counter()
    assert extract(r"\boxed{" * 50_000).reason == "cut_off"
    assert extract("<think>" * 50_000).reason == "open_think"
    assert extract("}" * 500_000 + r"\boxed{1}") == "1"
    assert time.perf_counter() - start < 5


def test_the_answer_of_a_worked_reference_is_its_box():
    assert reference_text(r"So $x = \boxed{5}$.") == "5"
    assert reference_text(r"$\frac{1}{2}$") == r"\frac{1}{2}"
