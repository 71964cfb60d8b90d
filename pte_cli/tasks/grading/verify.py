r"""Comparing an answer with its reference by mathematics: math-verify, used the way its design needs.

- Both sides are put into `\boxed{}` before parsing: a bare `2\sqrt{5}` would be read as 2.
- The reference comes first: `verify` is not symmetric.
- Its own time limit works by signals, so it is switched off; the worker process this runs in has a hard one.
- It rounds to six decimals, where 1e-8 and 2e-8 are the same. The number of decimals grows with small references.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse
from math_verify import verify as math_verify
from sympy import Basic, MatrixBase, Set, Tuple

from pte_cli.tasks.grading.cost import too_large
from pte_cli.tasks.grading.outcome import Reason
from pte_cli.tasks.grading.quantity import DECIMALS, SIGNIFICANT, close, quantity

WHOLE_BOX = (LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0),)
"""Read the box as one expression or not at all: by default the last number in what can't be read is taken for it."""


def verify(references: Sequence[str], answer: str) -> Reason:
    """Whether the normalised answer equals any of the normalised references."""
    given = parsed(answer)
    reasons = [_verify(reference, answer, given) for reference in references]
    return next((reason for reason in ("right", "timeout", "no_reference") if reason in reasons), reasons[0])


def _verify(reference: str, answer: str, given: tuple[Any, ...]) -> Reason:
    wanted = parsed(reference)
    if not _mathematics(wanted):
        return "no_reference"
    if not _mathematics(given):
        return "unparsable"
    if any(too_large(expression) for expression in (*wanted, *given)):
        return "timeout"
    if (equal := _decimal_equal(reference, wanted[0], answer, given[0])) is not None:
        return "right" if equal else "wrong"
    equal = math_verify(
        list(wanted), list(given), float_rounding=decimals(wanted[0]), strict=True, timeout_seconds=None
    )
    return "right" if equal else "wrong"


@lru_cache(maxsize=512)
def parsed(text: str) -> tuple[Any, ...]:
    """What math-verify reads in an answer: expressions, and the text itself where it makes a fallback of it."""
    for letter, symbol in ((r"E", r"\\mathcal{E}"), (r"e", r"\\mathrm{e}")):
        # Left alone, Euler's number with a subscript can't be read.
        text = re.sub(rf"(?<![A-Za-z\\]){letter}(?=_)", symbol, text)
    return tuple(parse(rf"\boxed{{{text}}}", WHOLE_BOX, extraction_mode="first_match", parsing_timeout=None))


def _mathematics(expressions: Iterable[Any]) -> bool:
    return any(isinstance(expression, Basic | MatrixBase) for expression in expressions)


def _decimal_equal(reference: str, wanted: Any, answer: str, given: Any) -> bool | None:
    """Whether two numbers, one of them written as a decimal, agree; None where they are something else."""
    if not any(number and number.decimal for number in (quantity(reference), quantity(answer))):
        return None
    values = [_value(text, expression) for text, expression in ((reference, wanted), (answer, given))]
    if values[0] is None or values[1] is None:
        return None
    return close(values[0], values[1])


def _value(text: str, expression: Any) -> Fraction | None:
    if exact := quantity(text):
        return exact.value
    if not getattr(expression, "is_number", False):
        return None
    value = expression.evalf(30)
    return Fraction(str(value)) if value.is_Float and value.is_finite else None


def decimals(reference: Any) -> int:
    """To how many decimals a reference is compared: six, or more so that five of its digits count."""
    smallest = min((size for size in map(_size, _elements(reference)) if size), default=1.0)
    return max(DECIMALS, SIGNIFICANT - 1 - math.floor(math.log10(smallest)))


def _elements(expression: Any) -> Iterable[Any]:
    return expression.args if isinstance(expression, Set | Tuple) else [expression]


def _size(expression: Any) -> float:
    if not getattr(expression, "is_number", False) or too_large(expression):
        return 0.0
    try:
        size = abs(float(expression))
        return size if math.isfinite(size) else 0.0
    except (TypeError, ValueError, OverflowError):
        return 0.0
