"""The samples of an evaluation on disk: a line each, written as they come, so that an interrupted one goes on later.

A folder holds `bench.json`, the settings that decide what a sample is, and NAME.jsonl or NAME.parquet per benchmark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pte_cli.errors import UsageError
from pte_cli.eval.recorded import read_records

HEADER = "bench.json"
SCORES = "scores.json"
Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")

COLUMNS = {
    "id": "string",
    "sample": "int64",
    "problem": "string",
    "answer": "string",
    "prompt": "string",
    "completion": "string",
    "finish": "string",
    "length": "int64",
    "evictions": "int64",
    "extracted": "string",
    "score": "float64",
    "reason": "string",
    "correct": "bool",
    "grader": "string",
}
"""What is recorded of a sample, in Arrow's types. extracted: the text of its final box, null where there is none."""


@dataclass(frozen=True)
class Outcome:
    """What scores are computed from: a sample without its text."""

    id: str
    sample: int
    score: float
    reason: str
    finish: str
    length: int
    evictions: int


class SampleStore:
    """Reads and appends the samples in a folder.

    `header` is what must be equal for samples to be of one kind. UsageError where the folder holds samples of another.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.header = path, dict(header)
        there = path
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"--out {path}: {there} is not a folder that can be written")
        if (path / HEADER).is_file():
            if differing := differences(read_header(path), self.header):
                name, (old, new) = next(iter(differing.items()))
                raise UsageError(
                    f"--out {path}: its samples were made with {name} = {old!r}, now it is {new!r}; choose another "
                    "folder, or the same settings to go on"
                )
        elif path.exists() and any(path.iterdir()):
            raise UsageError(f"--out {path}: holds other files and no {HEADER}; choose a new folder")

    def outcomes(self, name: str, problems: Mapping[str, tuple[str, str]]) -> list[Outcome]:
        """What is there of a benchmark, by `problems`: (problem, answer) by id; samples of other problems are left out.

        Cuts off a last line that was half written. UsageError where a problem of that id has another text or answer.
        """
        mend(self.path / f"{name}.jsonl")
        found: dict[tuple[str, int], Outcome] = {}
        for record in read_recorded(self.path, name):
            texts = problems.get(record["id"])
            if texts is None:
                continue
            if texts != (record["problem"], record["answer"]):
                raise UsageError(
                    f"--out {self.path}: problem {record['id']!r} of {name} has another text or answer there; "
                    "choose another folder"
                )
            outcome = outcome_of(record)
            found.setdefault((outcome.id, outcome.sample), outcome)
        return list(found.values())

    def append(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Add samples; they are on disk when this returns."""
        if not (self.path / HEADER).is_file():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / HEADER, self.header)
        with (self.path / f"{name}.jsonl").open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, scores: Mapping[str, Any], names: Sequence[str], form: Format) -> None:
        """Write the scores, and turn the samples into Parquet files where that is wanted."""
        self.path.mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            for name in names:
                to_parquet(self.path, name)
        write_whole(self.path / SCORES, scores)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings, by dotted name, in which two headers differ."""
    before, after = flat(old), flat(new)
    names = dict.fromkeys([*before, *after])
    return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested mapping by dotted names."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return found


def find_recorded(path: Path) -> Path:
    """The folder of samples that `path` is, or the only one in it. UsageError where there is none, or several."""
    if (path / HEADER).is_file():
        return path
    found = sorted(file.parent for file in path.glob(f"*/{HEADER}"))
    if not found:
        raise UsageError(
            f"--compare {path}: no recorded evaluation there (pte eval --bench ... --out FOLDER makes one)"
        )
    if len(found) > 1:
        raise UsageError(f"--compare {path}: several evaluations there; name one: {', '.join(map(str, found))}")
    return found[0]


def read_header(path: Path) -> dict[str, Any]:
    """The settings of the samples in a folder."""
    try:
        header = json.loads((path / HEADER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path / HEADER}: can't be read ({error})") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path / HEADER}: is not what pte eval writes")
    return header


def read_recorded(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """The samples of a benchmark in a folder, in both formats: a resumed evaluation may have left some in each."""
    if (path / f"{name}.parquet").is_file():
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path / f"{name}.parquet").iter_batches(1024):
            yield from batch.to_pylist()
    if (path / f"{name}.jsonl").is_file():
        yield from (record for _, record in read_records(path / f"{name}.jsonl"))


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """A recorded sample without its text."""
    return Outcome(**{field: record[field] for field in Outcome.__dataclass_fields__})


def mend(file: Path) -> None:
    """Cut off what stands after the last end of line: a line that was being written when the program was stopped."""
    if not file.is_file():
        return
    with file.open("rb+") as content:
        size = end = content.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 2**16)
            content.seek(start)
            at = content.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            content.truncate(end)


def to_parquet(path: Path, name: str) -> None:
    """NAME.jsonl, and what NAME.parquet has already, as NAME.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not (path / f"{name}.jsonl").is_file():
        return
    rows = {(record["id"], record["sample"]): record for record in read_recorded(path, name)}
    scratch = path / f".{name}.parquet.tmp"
    schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in COLUMNS.items()])
    pq.write_table(pa.Table.from_pylist(list(rows.values()), schema=schema), scratch)
    scratch.replace(path / f"{name}.parquet")
    (path / f"{name}.jsonl").unlink()


def write_whole(file: Path, content: Any) -> None:
    """A JSON file that is there whole or not at all."""
    scratch = file.with_name(f".{file.name}.tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(file)
