"""Which grader gave a score: scores of different versions are not the same measurement."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

RULES = 1
"""Counts up whenever a rule of `grading` changes what is right."""


@cache
def grader_version() -> str:
    """`pte 1, math-verify 0.9.0`: our rules, and the library that compares expressions."""
    return f"pte {RULES}, math-verify {version('math-verify')}"
