"""The benchmarks by name, and reading their problems: from the hub, a folder of JSON Lines, or one such file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pte_cli.errors import UsageError, did_you_mean
from pte_cli.eval.recorded import read_records
from pte_cli.tasks.prompts import is_text


@dataclass(frozen=True)
class OnHub:
    """Where a benchmark's problems are on the hub."""

    repository: str
    split: str = "test"
    subset: str | None = None


BENCHMARKS: Mapping[str, OnHub] = {
    "math500": OnHub("HuggingFaceH4/MATH-500"),
    "olympiadbench": OnHub("math-ai/olympiadbench"),
    "minerva": OnHub("math-ai/minervamath"),
    "amc23": OnHub("math-ai/amc23"),
    "aime24": OnHub("HuggingFaceH4/aime_2024", split="train"),
    "aime25": OnHub("math-ai/aime25"),
    "gsm8k": OnHub("openai/gsm8k", subset="main"),
}

FIELDS = {
    "id": ("id", "unique_id"),
    "problem": ("problem", "question"),
    "answer": ("answer", "final_answer"),
}
"""What we call a field, and what it may be called where it comes from."""

WORKED = "####"
"""GSM8K's answers are worked solutions; what follows this is the answer."""

Benchmarks = Mapping[str, "list[BenchProblem]"]


@dataclass(frozen=True)
class BenchProblem:
    """One problem and its reference answer. `id` is unique in its benchmark."""

    id: str
    problem: str
    answer: str


def read_benchmarks(names: str, folder: Path | None = None, limit: int | None = None) -> dict[str, list[BenchProblem]]:
    """The first `limit` problems of each benchmark in `names`, a list with commas of names and paths of JSONL files.

    folder: where NAME.jsonl or NAME_test.jsonl is; without one, names come from the hub. UsageError for a name or file
    that isn't there, and for a row that is no problem. Names are all checked before anything is read.
    """
    wanted = [name.strip() for name in names.split(",")]
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--bench-dir {folder}: there is no such folder")
    places: dict[str, Path | OnHub] = {}
    for name in wanted:
        place = _place(name, folder)
        short = place.stem.removesuffix("_test") if name.endswith(".jsonl") and isinstance(place, Path) else name
        if short in places:
            raise UsageError(f"--bench {names}: {short!r} is there twice")
        places[short] = place
    return {name: _problems(name, place, limit) for name, place in places.items()}


def _place(name: str, folder: Path | None) -> Path | OnHub:
    if name.endswith(".jsonl"):
        if not Path(name).is_file():
            raise UsageError(f"--bench {name}: there is no such file")
        return Path(name)
    if folder is None:
        if name not in BENCHMARKS:
            raise UsageError(f"--bench {name}: unknown benchmark; {did_you_mean(name, BENCHMARKS)}; or a .jsonl file")
        return BENCHMARKS[name]
    if Path(name).name != name:
        raise UsageError(f"--bench {name}: is no name of a file in {folder}; name it without a folder")
    for file in (folder / f"{name}.jsonl", folder / f"{name}_test.jsonl"):
        if name and file.is_file():
            return file
    there = {file.stem.removesuffix("_test") for file in folder.glob("*.jsonl")}
    if not there:
        raise UsageError(f"--bench-dir {folder}: there are no .jsonl files in it")
    raise UsageError(f"--bench {name}: no {name}.jsonl in {folder}; {did_you_mean(name, there)}")


def _problems(name: str, place: Path | OnHub, limit: int | None) -> list[BenchProblem]:
    rows = _file_rows(place) if isinstance(place, Path) else _hub_rows(name, place)
    found: dict[str, BenchProblem] = {}
    for where, row in rows:
        if limit is not None and len(found) == limit:
            break
        problem = _problem(name, where, row, len(found))
        if problem.id in found:
            raise UsageError(f"{where}: the id {problem.id!r} is there twice")
        found[problem.id] = problem
    if not found:
        raise UsageError(f"--bench {name}: {place} holds no problems")
    return list(found.values())


def _problem(name: str, where: str, row: Mapping[str, Any], number: int) -> BenchProblem:
    fields = {}
    for field, spellings in FIELDS.items():
        value = next((row[spelling] for spelling in spellings if row.get(spelling) is not None), None)
        if value is None and field == "id":
            value = number
        if isinstance(value, list):
            value = ", ".join(str(part) for part in value)
        if isinstance(value, str) and not is_text(value):
            raise UsageError(f"{where}: {field!r} holds half a surrogate pair, which is no text; leave the row out")
        if value is None or not str(value).strip():
            raise UsageError(f"{where}: no {field!r}; a row needs problem and answer, and id if it has one")
        fields[field] = str(value)
    own = fields["id"]
    fields["id"] = own if own.startswith(f"{name}/") or isinstance(row.get("id"), str) else f"{name}/{own}"
    return BenchProblem(**fields)


def _file_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((f"{file}, line {number}", row) for number, row in read_records(file))


def _hub_rows(name: str, place: OnHub) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from datasets import load_dataset

    try:
        rows: Iterable[Any] = load_dataset(place.repository, place.subset, split=place.split)
    except Exception as error:  # whatever the hub's client, the network or a file format raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"--bench {name}: {place.repository} can't be had from the hub ({reason}); "
            f"use --bench-dir FOLDER with a {name}.jsonl in it"
        ) from None
    for number, row in enumerate(rows):
        answer = row.get("answer")
        if isinstance(answer, str) and WORKED in answer:
            row = {**row, "answer": answer.rpartition(WORKED)[2].strip().replace(",", "")}
        yield f"{place.repository}, row {number}", row
