r"""The final boxed answer of a completion, looked for outside `<think>...</think>` only.

The last box counts, whole or not: a completion that ends in an open `\boxed{` has given no answer, whatever it boxed
before. Everything here is linear in the length of the text.
"""

from __future__ import annotations

import re

from pte_cli.tasks.grading.outcome import Grade

TAG = re.compile(r"<(/?)think>")
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
BARE = re.compile(r"[^\s$]+")


def extract(completion: str) -> str | Grade:
    """The text inside the final box, or the grade (score 0) that says why there is none."""
    outside = outside_thinking(completion)
    if outside is None:
        return Grade("open_think")
    inside = last_box(outside)
    if inside is None:
        return Grade("cut_off" if BOX.search(outside) else "no_box")
    return inside if inside.strip(" \n\t~$.,\\") else Grade("empty_box", inside)


def outside_thinking(text: str) -> str | None:
    """The text without its `<think>...</think>` parts; None where the last one is never closed.

    A `</think>` without its opening tag closes reasoning that began in the prompt: all before it is dropped.
    """
    kept: list[str] = []
    start, thinking = 0, False
    for tag in TAG.finditer(text):
        if not tag[1]:
            if not thinking:
                kept.append(text[start : tag.start()])
            thinking = True
        else:
            if not thinking:
                kept.clear()
            thinking, start = False, tag.end()
    return None if thinking else "".join([*kept, text[start:]])


def last_box(text: str) -> str | None:
    r"""What the last outermost `\boxed` or `\fbox` holds; None where there is none or the last is not closed."""
    found: str | None = None
    end = -1
    closing = _closing_braces(text)
    for box in BOX.finditer(text):
        if box.start() < end:
            continue  # inside the box before it
        at = box.end()
        if text[at : at + 1] == "{":
            if at not in closing:
                found = None
                continue
            end = closing[at]
            found = text[at + 1 : end]
        else:
            bare = BARE.match(text, at)
            found = bare[0] if bare else None
    return found


def answer_start(text: str) -> int | None:
    """Where the answer begins: at the last box, or right after `</think>`, whichever is later; None without either."""
    closed = [tag.end() for tag in TAG.finditer(text) if tag[1]]
    boxes = [box.start() for box in BOX.finditer(text)]
    return max([*closed, *boxes], default=None)


def _closing_braces(text: str) -> dict[int, int]:
    """For every opening brace that is closed: where. Braces behind a backslash are signs, not groups."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    for brace in re.finditer(r"\\.|[{}]", text, flags=re.DOTALL):
        if brace[0] == "{":
            stack.append(brace.start())
        elif brace[0] == "}" and stack:
            pairs[stack.pop()] = brace.start()
    return pairs


def reference_text(reference: str) -> str:
    r"""The answer in a reference: its last box where it has one (a worked solution), else all of it without `$`."""
    boxed = last_box(reference)
    return (reference if boxed is None else boxed).strip().strip("$").strip()
