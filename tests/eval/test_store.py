"""Samples on disk: appended, mended, resumed, in both formats."""

from __future__ import annotations

import json

import pytest

from pte_cli.errors import UsageError
from pte_cli.eval.store import SampleStore, differences, find_recorded, read_recorded

HEADER = {"model": {"name": "tiny", "dtype": "float32"}, "temperature": 0.6, "grader": "g 1"}
TEXTS = {"a": ("1+1?", "2"), "b": ("2+2?", "4")}


def sample(identity="a", number=0, score=1.0, **more):
    problem, answer = TEXTS[identity]
    return {
        "id": identity, "sample": number, "problem": problem, "answer": answer, "prompt": problem,
        "completion": "\\boxed{2}", "finish": "stop", "length": 9, "evictions": 1, "extracted": None, "score": score,
        "reason": "right" if score else "wrong", "correct": score == 1, "grader": "g 1", **more,
    }  # fmt: skip


def found(path, header=HEADER):
    return [(o.id, o.sample, o.score) for o in SampleStore(path, header).outcomes("x", TEXTS)]


def test_what_was_appended_is_there(tmp_path):
    store = SampleStore(tmp_path / "new" / "out", HEADER)
    assert not (tmp_path / "new").exists()
    store.append("x", [sample("a"), sample("b", score=0.0)])
    store.append("x", [sample("a", 1)])
    assert found(tmp_path / "new" / "out") == [("a", 0, 1.0), ("b", 0, 0.0), ("a", 1, 1.0)]
    assert json.loads((tmp_path / "new" / "out" / "bench.json").read_text()) == HEADER


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_half_written_last_line_is_cut_off(tmp_path, cut):
    store = SampleStore(tmp_path, HEADER)
    store.append("x", [sample("a")])
    whole = (tmp_path / "x.jsonl").read_bytes()
    half = (json.dumps(sample("b", completion="é" * 70_000), ensure_ascii=False).encode())[:-cut]
    (tmp_path / "x.jsonl").write_bytes(whole + half)
    assert found(tmp_path) == [("a", 0, 1.0)]
    assert (tmp_path / "x.jsonl").read_bytes() == whole
    store.append("x", [sample("b")])
    assert found(tmp_path) == [("a", 0, 1.0), ("b", 0, 1.0)]


def test_a_first_line_that_was_half_written_leaves_nothing(tmp_path):
    SampleStore(tmp_path, HEADER).append("x", [])
    (tmp_path / "x.jsonl").write_bytes(b'{"id": "a", "sam')
    assert found(tmp_path) == []


def test_a_line_broken_in_the_middle_is_named(tmp_path):
    SampleStore(tmp_path, HEADER).append("x", [sample("a")])
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(UsageError, match=r"x.jsonl, line 2: not JSON"):
        found(tmp_path)


def test_parquet_holds_the_same_and_can_be_gone_on_with(tmp_path):
    store = SampleStore(tmp_path, HEADER)
    store.append("x", [sample("a"), sample("b", extracted="2")])
    before = list(read_recorded(tmp_path, "x"))
    store.finish({"mean": 1.0}, ["x"], "parquet")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bench.json", "scores.json", "x.parquet"]
    assert list(read_recorded(tmp_path, "x")) == before
    store.append("x", [sample("a", 1)])
    assert found(tmp_path) == [("a", 0, 1.0), ("b", 0, 1.0), ("a", 1, 1.0)]
    store.finish({"mean": 1.0}, ["x"], "parquet")
    assert not (tmp_path / "x.jsonl").exists()
    assert found(tmp_path) == [("a", 0, 1.0), ("b", 0, 1.0), ("a", 1, 1.0)]


def test_a_sample_that_is_there_twice_counts_once(tmp_path):
    SampleStore(tmp_path, HEADER).append("x", [sample("a"), sample("a", score=0.0)])
    assert found(tmp_path) == [("a", 0, 1.0)]


def test_other_settings_are_refused_by_name(tmp_path):
    SampleStore(tmp_path, HEADER).append("x", [sample("a")])
    with pytest.raises(UsageError, match="its samples were made with model.dtype = 'float32', now it is 'bfloat16'"):
        SampleStore(tmp_path, {**HEADER, "model": {"name": "tiny", "dtype": "bfloat16"}})


def test_another_text_of_a_problem_is_refused(tmp_path):
    store = SampleStore(tmp_path, HEADER)
    store.append("x", [sample("a")])
    with pytest.raises(UsageError, match="problem 'a' of x has another text or answer there"):
        store.outcomes("x", {"a": ("1+1?", "3")})
    assert store.outcomes("x", {"b": TEXTS["b"]}) == []


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files and no bench.json"):
        SampleStore(tmp_path, HEADER)
    with pytest.raises(UsageError, match="is not a folder that can be written"):
        SampleStore(tmp_path / "notes.txt" / "out", HEADER)


def test_differences_name_what_is_only_in_one(tmp_path):
    new = {"model": {"name": "tiny"}, "temperature": 0.6, "grader": "g 2", "seed": 1}
    assert differences(HEADER, new) == {
        "model.dtype": ("float32", None),
        "grader": ("g 1", "g 2"),
        "seed": (None, 1),
    }


def test_the_only_evaluation_in_a_run_is_found_several_are_not_guessed(tmp_path):
    SampleStore(tmp_path / "one", HEADER).append("x", [sample("a")])
    assert find_recorded(tmp_path) == find_recorded(tmp_path / "one") == tmp_path / "one"
    SampleStore(tmp_path / "two", HEADER).append("x", [sample("a")])
    with pytest.raises(UsageError, match=r"several evaluations there; name one: .*one, .*two"):
        find_recorded(tmp_path)
    with pytest.raises(UsageError, match="no recorded evaluation there"):
        find_recorded(tmp_path / "three")
