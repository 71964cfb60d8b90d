"""Notation, numbers, and what is decided without mathematics."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pte_cli.tasks.grading.exact import Pair, asks_for_percentage, compare
from pte_cli.tasks.grading.normalize import key, normalize, word
from pte_cli.tasks.grading.quantity import quantity


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("−5", "-5"),
        ("–3", "-3"),
        ("√5", r"\sqrt{5}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("x²", "x^{2}"),
        ("10⁻³", "10^{-3}"),
        ("x₁", "x_{1}"),
        (r"1\,000", "1000"),
        ("12 345 678", "12345678"),
        ("1{,}000", "1,000"),
        (r"1,\!000", "1,000"),
        ("4.5e33", r"4.5\times 10^{33}"),
        ("1E-9", r"1\times 10^{-9}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\left[1, 2\right)", "[1, 2)"),
        (r"$5$.", "5"),
        (r"\boxed{7}", "7"),
        (r"90^\circ", "90"),
        (r"\mathrm{cm}", r"\text{cm}"),
        ("e^2+1", "e^2+1"),
        (r"\begin{pmatrix}1\\ 2\end{pmatrix}", r"\begin{pmatrix}1\\ 2\end{pmatrix}"),
        (r"A \rightarrow B", r"A \rightarrow B"),
    ],
)
def test_one_spelling(text, normal):
    assert normalize(text) == normal
    assert normalize(normal) == normal


def test_key_and_word():
    assert key(r"\text{odd}") == key("odd")
    assert key("x^{2} + 1") == key("x^2+1")
    assert key("x^{23}") != key("x^{2}3")
    assert word(r"\text{(C)}") == word("C") == "c"
    assert word("12") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", Fraction(2469, 2)),
        (r"-4.5\times 10^{3}", Fraction(-4500)),
        ("10^{-3}", Fraction(1, 1000)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        ("-3/4", Fraction(-3, 4)),
        (r"\$5.25", Fraction(21, 4)),
        (r"12 \text{ cm}^2", Fraction(12)),
    ],
)
def test_numbers_are_exact(text, value):
    assert quantity(text).value == value


@pytest.mark.parametrize(
    "text", ["", "x", "1,2", "(1,2)", r"\frac{1}{0}", r"1\times 10^{999999999}", "5 million", "9" * 300]
)
def test_what_is_no_number(text):
    assert quantity(text) is None


@pytest.mark.parametrize(
    ("reference", "answer", "verdict"),
    [
        (r"\frac{1}{3}", "0.333333", "right"),
        (r"\frac{1}{3}", "0.33333", "wrong"),
        ("1e-8", "2e-8", "wrong"),
        ("1e-8", "1.0e-8", "right"),
        ("1.6e-19", r"1.6\times10^{-19}", "right"),
        ("1.6e-19", r"1.7\times10^{-19}", "wrong"),
        ("1e-8", "0", "wrong"),
        ("1000000", "1000001", "wrong"),
        (r"5\text{ cm}", "5", "right"),
        ("5", "5 centimeters", "right"),
        (r"5\text{ cm}", r"5\text{ m}", "wrong"),
        (r"5\text{ cm}", r"5\text{ centimeters}", "right"),
        ("100,200,300", "300,200,100", "right"),
        ("100,200,300", "300,200,101", "wrong"),
        (r"\text{east}", "seat", "wrong"),
        (r"\text{(C)}", "D", "wrong"),
        ("2516_8", "2516_7", None),
        ("5", "x=5", "right"),
        ("5", "x = 6", "wrong"),
        (r"10\%", "10", "right"),
        (r"10\%", "0.1", "right"),
        (r"10\%", r"11\%", "wrong"),
        ("", "5", "no_reference"),
        ("5", "5" * 3000, "too_long"),
        (r"2\sqrt{5}", "2", None),
    ],
)
def test_decided_by_text_and_numbers(reference, answer, verdict):
    found = compare(reference, answer)
    assert isinstance(found, Pair) if verdict is None else found == verdict


def test_a_percentage_counts_as_its_number_only_where_it_is_asked_for():
    assert compare("50", r"50\%") == "wrong"
    assert compare("50", r"50\%", "How many apples are left?") == "wrong"
    assert compare("50", r"50\%", "What percent of the apples is left?") == "right"
    assert compare("0.5", r"50\%", "What is the probability?") == "right"
    assert compare("50", "0.5", "What percentage is left?") == "wrong"
    assert asks_for_percentage("Express your answer as a percentage.")
    assert not asks_for_percentage("After a rise of 20 percent, how many are there?")
    assert not asks_for_percentage("Find how many are left when 20% are sold, as in 30 percent of cases.")
