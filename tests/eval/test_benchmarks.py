"""Reading problems: names, folders, files, the hub's columns, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from pte_cli.errors import UsageError
from pte_cli.eval.benchmarks import BENCHMARKS, BenchProblem, read_benchmarks

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "benchmarks"


def write(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "math500.jsonl", {"id": "m/1", "problem": "1+1?", "answer": "2", "source": "X"})
    write(tmp_path / "gsm8k_test.jsonl", *({"problem": f"{i}?", "answer": i} for i in range(5)))
    return tmp_path


def test_names_are_files_of_the_folder(folder):
    found = read_benchmarks("gsm8k, math500", folder, limit=3)
    assert list(found) == ["gsm8k", "math500"]
    assert found["math500"] == [BenchProblem("m/1", "1+1?", "2")]
    assert found["gsm8k"] == [BenchProblem(f"gsm8k/{i}", f"{i}?", f"{i}") for i in range(3)]


def test_a_file_is_a_benchmark_of_its_name(folder):
    found = read_benchmarks(f"{folder / 'gsm8k_test.jsonl'}")
    assert [problem.answer for problem in found["gsm8k"]] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("gsm9k", r"--bench gsm9k: no gsm9k.jsonl in .*; did you mean 'gsm8k'\? Known: gsm8k, math500"),
        ("gsm8k,gsm8k", "'gsm8k' is there twice"),
        ("nowhere.jsonl", "--bench nowhere.jsonl: there is no such file"),
        ("", "--bench : no .jsonl in"),
    ],
)
def test_what_is_not_there_is_named(folder, names, message):
    with pytest.raises(UsageError, match=message):
        read_benchmarks(names, folder)


def test_a_name_is_checked_before_the_hub_is_asked(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(UsageError, match="--bench math50: unknown benchmark; did you mean 'math500'"):
        read_benchmarks("gsm8k,math50")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UsageError, match="--bench-dir .*nowhere: there is no such folder"):
        read_benchmarks("gsm8k", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "problem": "1?"}, "own.jsonl, line 2: no 'answer'"),
        ({"id": "a", "problem": " ", "answer": "1"}, "own.jsonl, line 2: no 'problem'"),
        ({"id": "first", "problem": "1?", "answer": "1"}, "own.jsonl, line 2: the id 'first' is there twice"),
        (["a"], "own.jsonl, line 2: a list; one object a line is expected"),
    ],
)
def test_a_row_that_is_no_problem_is_named(tmp_path, row, message):
    file = write(tmp_path / "own.jsonl", {"id": "first", "problem": "0?", "answer": "0"}, row)
    with pytest.raises(UsageError, match=message):
        read_benchmarks(str(file))


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no problems"):
        read_benchmarks(str(write(tmp_path / "own.jsonl")))


HUB = {
    "gsm8k": ({"question": "How many?", "answer": "8 * 200 = 1600\n#### 1,600"}, "gsm8k/0", "1600"),
    "olympiadbench": ({"id": 1606, "question": "Find all.", "final_answer": ["1", "2"]}, "olympiadbench/1606", "1, 2"),
    "math500": ({"unique_id": "test/x/807.json", "problem": "?", "answer": "3"}, "math500/test/x/807.json", "3"),
    "aime24": ({"id": 60, "problem": "?", "answer": "204"}, "aime24/60", "204"),
}


@pytest.mark.parametrize("name", HUB)
def test_columns_as_the_hub_has_them(name, monkeypatch):
    row, identity, answer = HUB[name]
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, split: asked.append((*a, split)) or [row])
    [problem] = read_benchmarks(name)[name]
    place = BENCHMARKS[name]
    assert asked == [(place.repository, place.subset, place.split)]
    assert (problem.id, problem.answer) == (identity, answer)


def test_a_hub_that_can_not_be_reached_is_one_line(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UsageError, match=r"math-ai/aime25 can't be had from the hub \(no route\); use --bench-dir"):
        read_benchmarks("aime25")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmarks' files are not beside the repository")
def test_every_benchmark_of_the_table_is_read_whole():
    found = read_benchmarks(",".join(BENCHMARKS), SHARED)
    sizes = {name: len(problems) for name, problems in found.items()}
    assert sizes == {
        "math500": 500, "olympiadbench": 675, "minerva": 272, "amc23": 40, "aime24": 30, "aime25": 30, "gsm8k": 1319,
    }  # fmt: skip
