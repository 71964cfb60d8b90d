"""Reading recorded completions: JSON Lines, one problem or one sample a line. Every bad line is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pte_cli.errors import UsageError

FIELDS = "answer, and completion (text) or completions (a list); id, problem, sample and finish if known"


@dataclass(frozen=True)
class Sample:
    """One recorded completion. `id`: its problem; `index`: which sample of it; `finish`: None if unknown."""

    id: str
    problem: str
    answer: str
    completion: str
    index: int
    finish: str | None


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in its order, one line in memory at a time.

    A problem without an id is known by its text. UsageError names file and line of the first one that is wrong.
    """
    answers: dict[str, tuple[str, int]] = {}
    seen: dict[str, set[int]] = {}
    for number, record in read_records(path):
        line = _Line(path, number, record)
        answer, problem = line.text("answer"), line.text("problem", "")
        name = line.text("id", problem or f"line {number}")
        first, where = answers.setdefault(name, (answer, number))
        if first != answer:
            line.fail(f"problem {name!r} has the answer {answer!r} here and {first!r} in line {where}")
        indices = seen.setdefault(name, set())
        for completion, finish, index in line.completions():
            index = len(indices) if index is None else index
            if index in indices:
                line.fail(f"sample {index} of problem {name!r} is there twice")
            indices.add(index)
            yield Sample(name, problem, answer, completion, index, finish)
    if not answers:
        raise UsageError(f"{path}: holds no completions; a line needs {FIELDS}")


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a JSON Lines file. UsageError names the line that is none."""
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if not raw.strip():
                    continue
                try:
                    record = json.loads(raw)
                except (ValueError, RecursionError) as error:
                    raise UsageError(f"{path}, line {number}: not JSON: {error}") from None
                if not isinstance(record, dict):
                    raise UsageError(f"{path}, line {number}: a {type(record).__name__}; one object a line is expected")
                yield number, record
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}") from None


class _Line:
    """One record and how to complain about it."""

    def __init__(self, path: Path, number: int, record: dict[str, Any]) -> None:
        self.path, self.number, self.record = path, number, record

    def fail(self, reason: str) -> None:
        raise UsageError(f"{self.path}, line {self.number}: {reason}")

    def text(self, field: str, default: str | None = None) -> str:
        """A field as text; numbers are taken as they are written."""
        value = self.record.get(field)
        if value is None and default is not None:
            return default
        if value is None:
            self.fail(f"no {field!r}; a line needs {FIELDS}")
        if isinstance(value, bool | list | dict):
            self.fail(f"{field!r} is {json.dumps(value)[:60]}; text is expected")
        return str(value)

    def completions(self) -> Iterator[tuple[str, str | None, int | None]]:
        """(completion, finish, index) of each sample in the line."""
        single, several = (self.record.get(field) for field in ("completion", "completions"))
        if (single is None) == (several is None):
            self.fail(f"{'no' if single is None else 'both'} 'completion' and 'completions'; a line needs {FIELDS}")
        texts = [single] if several is None else several
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            field = "completion" if several is None else "completions"
            given, wanted = (single, "text") if several is None else (several, "a list of texts")
            self.fail(f"{field!r} is {json.dumps(given)[:60]}; {wanted} is expected")
        finish = self.record.get("finish")
        finishes = finish if isinstance(finish, list) else [finish] * len(texts)
        if len(finishes) != len(texts) or not all(f is None or isinstance(f, str) for f in finishes):
            self.fail(f"'finish' is {json.dumps(finish)[:60]}; stop or length is expected, one for each completion")
        index = self.record.get("sample")
        if index is not None and (several is not None or isinstance(index, bool) or not isinstance(index, int)):
            self.fail(f"'sample' is {json.dumps(index)[:60]}; a whole number is expected, and one completion")
        for text, ended in zip(texts, finishes, strict=True):
            yield text, ended, index
