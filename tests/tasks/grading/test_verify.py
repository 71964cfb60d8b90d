"""Comparing by mathematics, and refusing what can't be computed."""

from __future__ import annotations

import pytest
from sympy import Integer, Pow, factorial

from pte_cli.tasks.grading.cost import digits, too_large
from pte_cli.tasks.grading.normalize import normalize
from pte_cli.tasks.grading.verify import verify


@pytest.mark.parametrize(
    ("reference", "answer", "reason"),
    [
        (r"2\sqrt{5}", "2", "wrong"),
        (r"2\sqrt{5}", r"\sqrt{20}", "right"),
        (r"x^2-1", "(x-1)(x+1)", "right"),
        ("3x+4y+14=0", "3x-y+13=0", "wrong"),
        ("3x+4y+14=0", "6x+8y+28=0", "right"),
        ("(1,2)", "1,2", "right"),
        ("(1,2)", "2,1", "wrong"),
        ("(1,2)", "[1,2]", "wrong"),
        ("1,3,5", "5,3,1", "right"),
        (r"\frac{\pi}{10^8}", "3e-8", "wrong"),
        (r"\frac{\pi}{10^8}", "3.14159e-8", "right"),
        (r"\frac{\sqrt{2}}{10}", "0.141421", "right"),
        # Read up to the last number by default, so that any expression ending in 2/3 was the same.
        (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"\frac{2}{3} E_{1}+\frac{2}{3} E_{2}", "wrong"),
        (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"\frac{E_1+2E_2}{3}", "right"),
        ("12", r"9^{9^{9^{9}}}", "timeout"),
        ("12", "1000000000!", "timeout"),
        ("12", r"\frac{}", "unparsable"),
        ("t(0,4]", "5", "no_reference"),
    ],
)
def test_pairs(reference, answer, reason):
    assert verify([normalize(reference)], normalize(answer)) == reason


def test_any_of_several_references():
    assert verify(["7", r"\sqrt{4}"], "2") == "right"


def test_size_is_bounded_from_above():
    tower = Pow(9, Pow(9, 9, evaluate=False), evaluate=False)
    assert digits(tower) == pytest.approx(9**9 * 0.9542425, rel=1e-6)  # 9^9 * log10(9)
    assert too_large(tower)
    assert not too_large(Pow(2, 2024, evaluate=False))
    assert too_large(factorial(Integer(10) ** 9, evaluate=False))
    assert not too_large(factorial(100, evaluate=False))
    assert too_large(Pow(2, Pow(10, 12, evaluate=False), evaluate=False) - 1)
