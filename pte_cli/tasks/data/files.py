"""Rows of a local file: JSONL, JSON, CSV or Parquet. Works offline and imports no torch."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pte_cli.errors import UsageError
from pte_cli.tasks.prompts import is_text


@dataclass(frozen=True)
class Raw:
    """A row as it was found, and where: `train.jsonl:12`."""

    place: str
    values: dict[str, Any]


def read_file(setting: str, path: Path, limit: int | None = None) -> list[Raw]:
    """The first `limit` rows. UsageError, naming `setting` and the line, for what can't be read."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{setting} = {str(path)!r}: unknown kind of file; use {', '.join(READERS)}")
    try:
        return list(islice(reader(path), limit))
    except OSError as error:
        raise UsageError(f"{setting} = {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{setting} = {str(path)!r}: not UTF-8 ({error.reason} at byte {error.start})") from None


def _json_lines(path: Path) -> Iterator[Raw]:
    # Bytes, split at newlines only: str.splitlines would also split at the separators U+2028 that JSON allows in text.
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path.name}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield Raw(place, _object(place, _strict_json(text)))
            except UnicodeDecodeError as error:
                raise UsageError(f"{place}: not UTF-8 ({error.reason} at byte {error.start} of the line)") from None
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{place}: not valid JSON ({error})") from None


def _json_array(path: Path) -> Iterator[Raw]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    try:
        rows = _strict_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name}: not valid JSON ({error})") from None
    for number, row in enumerate(rows):
        place = f"{path.name} row {number}"
        yield Raw(place, _object(place, row))


def _csv(path: Path) -> Iterator[Raw]:
    # Reasoning traces are longer than csv's default limit of 131,072 characters a field.
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            names = next(rows, [])
            if len(set(names)) < len(names):
                raise UsageError(f"{path.name}:1: a column's name appears twice: {', '.join(names)}")
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UsageError(f"{path.name}:{rows.line_num}: {len(row)} fields, the header has {len(names)}")
                yield Raw(f"{path.name}:{rows.line_num}", dict(zip(names, row, strict=True)))
        except csv.Error as error:
            raise UsageError(f"{path.name}:{rows.line_num}: not valid CSV ({error})") from None


def _parquet(path: Path) -> Iterator[Raw]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    yield Raw(f"{path.name} row {number}", values)
                    number += 1
    except pa.ArrowException as error:
        raise UsageError(f"{path.name}: not a Parquet file that can be read ({str(error).splitlines()[0]})") from None


def _object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{place}: expected an object with named fields, got {type(value).__name__}")
    if broken := next((name for name, text in value.items() if isinstance(text, str) and not is_text(text)), None):
        raise UsageError(f"{place}: {broken!r} holds half a surrogate pair, which is no text; leave it out")
    return value


def _strict_json(text: str) -> Any:
    """Without JSON's unofficial NaN and Infinity."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


READERS: Mapping[str, Callable[[Path], Iterator[Raw]]] = {
    ".jsonl": _json_lines,
    ".json": _json_array,
    ".csv": _csv,
    ".parquet": _parquet,
}
