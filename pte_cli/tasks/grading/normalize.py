r"""Answers as text: one spelling for what means the same, before any mathematics.

Only notation changes here, never a value: `1\,000` is 1000, `4.5e33` is `4.5\times 10^{33}`, U+2212 is a minus.
"""

from __future__ import annotations

import re

SIGNS = {
    **dict.fromkeys("−–—‐‑‒―﹣－", "-"),
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    **dict.fromkeys("\u200b\u2060\ufeff\u2061\u2062", ""),
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    "×": r"\times ",
    "⋅": r"\cdot ",
    "·": r"\cdot ",
    "÷": "/",
    "⁄": "/",
    "∕": "/",
    "π": r"\pi ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "λ": r"\lambda ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "°": r"^\circ",
    "％": r"\%",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
}
TRANSLATION = str.maketrans(SIGNS)
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))

REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"(?<!\\)\$", ""),
        (r"\\[()\[\]](?=\s*$)|^\s*\\[(\[]", ""),
        (r"\\(?:left|right)\s*(?=\\[{}|]|[()\[\]|.])\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:textbf|textit|textrm|mathrm|mathbf|mbox|rm|text)\s*\{", r"\\text{"),
        (r"_\{\s*\\text\{(\w+)\}\s*\}", r"_{\1}"),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]|~", " "),
        (r"\{,\}", ","),
        (r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le"),
        (r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([+-]?\d+)(?![\w.])", r"\1\\times 10^{\2}"),
        (r"10\^\{\+(\d)", r"10^{\1"),
        (r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*$", ""),
    )
)
SPACED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)")
RAISED_RUN = re.compile(f"[{''.join(RAISED)}]+")
LOWERED_RUN = re.compile(f"[{''.join(LOWERED)}]+")
ROOT = re.compile(r"√\s*(\([^()]*\)|\d+(?:\.\d+)?|[A-Za-z]|(?=\{))")
WRAPPED = re.compile(r"^\\(?:boxed|fbox)\s*\{(.*)\}$", flags=re.DOTALL)
TEXT = re.compile(r"\\(?:text|operatorname)\{([^{}]*)\}")


def normalize(text: str) -> str:
    """One spelling of an answer's notation, still LaTeX."""
    text = text.strip()
    while inner := WRAPPED.match(text):
        text = inner[1].strip()
    text = RAISED_RUN.sub(lambda run: "^{" + "".join(RAISED[c] for c in run[0]) + "}", text)
    text = LOWERED_RUN.sub(lambda run: "_{" + "".join(LOWERED[c] for c in run[0]) + "}", text)
    text = text.translate(TRANSLATION)
    text = ROOT.sub(lambda root: r"\sqrt" + (f"{{{root[1].strip('()')}}}" if root[1] else ""), text)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = SPACED_THOUSANDS.sub(lambda number: number[0].replace(" ", ""), text)
    return text.strip().rstrip(".,;:").strip()


def key(text: str) -> str:
    """What two normalised answers must share to be the same text: no blanks, no `\\text`, no needless braces."""
    text = TEXT.sub(r"\1", text)
    text = re.sub(r"\s+", "", text)
    return re.sub(r"\{(\w)\}", r"\1", text)


def word(text: str) -> str | None:
    r"""The words of an answer that is all `\text{...}` or one bare word, lower case; None for anything else.

    `\text{(C)}` and `C` are the same choice.
    """
    bare = TEXT.sub(r"\1", text).strip().strip("().").strip()
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]*", bare):
        return " ".join(bare.lower().split())
    return None
