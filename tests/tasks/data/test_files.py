"""Rows of local files, and what is said about those that can't be read."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pte_cli.errors import UsageError
from pte_cli.tasks.data.files import read_file

ROWS = [{"problem": "1 + 1", "answer": "2"}, {"problem": "π·\u2028½ „x“", "answer": "3,\n4"}]


def written(folder, kind):
    path = folder / f"rows{kind}"
    if kind == ".jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", encoding="utf-8")
    elif kind == ".json":
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    elif kind == ".csv":
        path.write_text('problem,answer\n1 + 1,2\nπ·\u2028½ „x“,"3,\n4"\n', encoding="utf-8-sig")
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    rows = read_file("data.source", written(tmp_path, kind))
    assert [row.values for row in rows] == ROWS
    assert read_file("data.source", written(tmp_path, kind), limit=1) == rows[:1]


def test_places_are_lines_where_there_are_lines(tmp_path):
    assert [row.place for row in read_file("s", written(tmp_path, ".jsonl"))] == ["rows.jsonl:1", "rows.jsonl:2"]
    assert [row.place for row in read_file("s", written(tmp_path, ".csv"))] == ["rows.csv:2", "rows.csv:4"]
    assert read_file("s", written(tmp_path, ".parquet"))[1].place == "rows.parquet row 1"


def test_a_long_csv_field_is_read(tmp_path):
    (tmp_path / "long.csv").write_text("prompt\n" + 200_000 * "x" + "\n")
    assert len(read_file("s", tmp_path / "long.csv")[0].values["prompt"]) == 200_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"a": NaN}\n', "a.jsonl:1: not valid JSON (NaN"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: expected an object with named fields, got list"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl:2: not UTF-8"),
        ("a.json", b"[1]", "a.json row 0: expected an object"),
        ("a.json", b"[{]", "a.json: not valid JSON"),
        ("a.csv", b"a,b\n1,2\n1\n", "a.csv:3: 1 fields, the header has 2"),
        ("a.csv", b"a,a\n1,2\n", "a.csv:1: a column's name appears twice"),
        ("a.csv", b"a\n\xff\n", "not UTF-8"),
        ("a.csv", b'a\n"open\n', "not valid CSV"),
        ("a.parquet", b"nothing", "not a Parquet file"),
        ("a.txt", b"x", "unknown kind of file; use .jsonl, .json, .csv, .parquet"),
    ],
)
def test_what_can_not_be_read_is_said_with_its_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_file("data.source", tmp_path / name)
    assert words in str(caught.value)
