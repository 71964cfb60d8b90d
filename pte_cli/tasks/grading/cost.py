"""An upper bound on the size of a parsed number, so that hopeless ones are not computed at all.

`1000000000!` and `9^{9^{9^{9}}}` parse at once (sympy keeps them unevaluated) and then take for ever.
"""

from __future__ import annotations

import math
from typing import Any

from sympy import Float, Mul, Number, Pow, binomial, factorial, factorial2

MOST_DIGITS = 1_000_000
HUGE = math.inf


def too_large(expression: Any) -> bool:
    """Whether evaluating it may need an integer of more than `MOST_DIGITS` digits."""
    seen = [expression]
    while seen:
        node = seen.pop()
        if abs(digits(node)) > MOST_DIGITS:
            return True
        seen += getattr(node, "args", ())
    return False


def digits(node: Any) -> float:
    """log10 |node| from above for numbers built by sums, products, powers and factorials; 0 for anything else."""
    if isinstance(node, Number):
        return _log10(node)
    if isinstance(node, Pow):
        exponent = digits(node.exp)
        if digits(node.base) == 0:
            return 0.0
        return HUGE if exponent > 9 else 10**exponent * abs(digits(node.base))
    if isinstance(node, factorial | factorial2 | binomial):
        size = digits(node.args[0])
        return HUGE if size > 6 else 10**size * max(size, 0.0)
    sizes = [digits(part) for part in getattr(node, "args", ())]
    if isinstance(node, Mul):
        return sum(sizes)
    return max(sizes, default=0.0) + math.log10(max(len(sizes), 1))


def _log10(number: Number) -> float:
    if not number.is_finite or number == 0:
        return 0.0
    if isinstance(number, Float):
        _, mantissa, exponent, _ = number._mpf_
        return math.log10(mantissa) + float(exponent) * math.log10(2)
    return math.log10(abs(int(number.p))) - math.log10(int(number.q))
