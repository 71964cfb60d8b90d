r"""Answers that are one number, perhaps with a unit: their exact value, without any computer algebra.

Two numbers are equal when their values are. Where one of them is written as a decimal they are also equal when they
agree to six decimals *and* to five significant digits: 0.333333 for 1/3, but not 2e-8 for 1e-8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

DECIMALS = 6
SIGNIFICANT = 5
LARGEST_EXPONENT = 10_000

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)"
POWER = r"(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+)))"
BARE_POWER = r"10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|(\d+))"
UNIT = r"(?:\s*\\text\{([^{}\d]*)\}(?:\^\{?(-?\d)\}?)?|\s+([A-Za-z][A-Za-z. ]{2,}))?"
NUMBER = re.compile(rf"([+-]?)\s*(?:\\?\$)?\s*(?:({DIGITS}){POWER}?|{BARE_POWER}){UNIT}")
RATIO = re.compile(
    rf"([+-]?)\s*(?:\\frac\{{\s*([+-]?{DIGITS})\s*\}}\{{\s*([+-]?{DIGITS})\s*\}}|({DIGITS})\s*/\s*({DIGITS})){UNIT}"
)
SCALES = re.compile(r"hundred|thousand|million|billion|trillion|dozen|percent|\bor\b|\band\b|\bto\b|\bmod\b")
UNITS = {
    name: unit
    for unit, names in {
        "mm": "millimeter millimetre",
        "cm": "centimeter centimetre",
        "m": "meter metre",
        "km": "kilometer kilometre",
        "in": "inch inche",
        "ft": "foot feet",
        "yd": "yard",
        "mi": "mile",
        "g": "gram",
        "kg": "kilogram",
        "s": "second sec",
        "min": "minute",
        "h": "hour hr",
        "day": "day",
        "week": "week",
        "month": "month",
        "year": "year",
        "dollar": "dollar",
        "cent": "cent",
        "am": "am a.m.",
        "pm": "pm p.m.",
    }.items()
    for name in (unit, *names.split())
}
"""Units whose mix-up is a wrong answer. Any other unit is left to the question, like no unit at all."""


@dataclass(frozen=True)
class Quantity:
    """value: exact. decimal: written with a decimal point or a power of ten. grouped: written with `,` groups."""

    value: Fraction
    decimal: bool
    grouped: bool
    unit: str | None


def quantity(text: str) -> Quantity | None:
    """The number that normalised `text` is; None where it is something else."""
    if len(text) > 200:
        return None
    if match := NUMBER.fullmatch(text):
        sign, digits, braced, bare, *rest = match.groups()
        ten_braced, ten_bare, *unit = rest
        power = int(braced or bare or ten_braced or ten_bare or 0)
        mantissa = digits or "1"
        if abs(power) > LARGEST_EXPONENT:
            return None
        value = Fraction(mantissa.replace(",", "")) * Fraction(10) ** power
        decimal = "." in mantissa or power != 0
    elif match := RATIO.fullmatch(text):
        sign, over, under, left, right, *unit = match.groups()
        mantissa = f"{over or left}/{under or right}"
        numerator, denominator = (Fraction(part.replace(",", "")) for part in mantissa.split("/"))
        if not denominator:
            return None
        value, decimal = numerator / denominator, "." in mantissa
    else:
        return None
    written = (unit[0] or unit[2] or "").strip().lower()
    if SCALES.search(written):
        return None
    return Quantity(-value if sign == "-" else value, decimal, "," in mantissa, _unit(written, unit[1]))


def _unit(written: str, exponent: str | None) -> str | None:
    known = UNITS.get(written) or UNITS.get(written.removesuffix(".").removesuffix("s"))
    return known and known + (exponent or "")


def close(reference: Fraction, value: Fraction) -> bool:
    """Six decimals and five significant digits of the reference."""
    off = abs(reference - value)
    return off <= Fraction(1, 10**DECIMALS) and off <= abs(reference) / 10**SIGNIFICANT


def same(reference: Quantity, answer: Quantity) -> bool:
    """Equal in value, and not in two units that are known to differ."""
    if reference.unit and answer.unit and reference.unit != answer.unit:
        return False
    if reference.decimal or answer.decimal:
        return close(reference.value, answer.value)
    return reference.value == answer.value
