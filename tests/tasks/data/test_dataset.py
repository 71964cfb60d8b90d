"""Rows with a meaning: columns, checks, and the division into training and held-out rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pte_cli.checks import check_config
from pte_cli.config import load_config
from pte_cli.errors import UsageError
from pte_cli.tasks.data.dataset import load_dataset
from pte_cli.tasks.data.sources import absolute, is_local

SHARED = Path(__file__).parents[4] / "shared" / "data" / "benchmarks" / "train_small.jsonl"


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dataset(source, *sets):
    return load_dataset(load_config(env={}, flags={"data.source": str(source)}, sets=["train.objective=grpo", *sets]))


def numbered(n):
    return [{"question": f"q{i}", "answer": str(i)} for i in range(n)]


@pytest.mark.parametrize("prompt", ["prompt", "problem", "question", "messages"])
def test_usual_names_are_found(tmp_path, prompt):
    text = [{"role": "user", "content": "hi"}] if prompt == "messages" else "hi"
    rows = [{"x": 1, prompt: text, "solution": "a", "response": "r"}] * 2
    found = dataset(jsonl(tmp_path / "a.jsonl", rows), "train.objective=sft")
    assert str(found.columns) == f"prompt = {prompt}, answer = solution, completion = response"
    assert found.train[0].prompt == text
    assert found.train[0].completion == "r"
    assert found.train[0].columns == {"x": 1, "solution": "a", "response": "r", "answer": "a", "problem": "hi"}
    assert found.rewards == ("math-verify",)


def test_mapped_columns_and_a_marker_before_the_answer(tmp_path):
    """The form of GSM8K: worked solution, then `#### answer`."""
    rows = [{"question": "q", "prompt": "other", "answer": "2 + 2 = 4\n#### 4"}] * 2
    found = dataset(jsonl(tmp_path / "a.jsonl", rows), "data.columns.prompt=question", "data.answer_after=####")
    assert found.train[0].prompt == "q"
    assert found.train[0].columns["answer"] == "4"


def test_whole_conversations_end_with_the_completion(tmp_path):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = dataset(jsonl(tmp_path / "a.jsonl", [{"messages": turns}] * 2), "train.objective=sft")
    assert (found.train[0].prompt, found.train[0].completion) == (turns[:1], "b")
    assert found.rewards == ()


def test_the_held_out_rows_are_never_trained_on_and_do_not_depend_on_seeds(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", numbered(50))
    first, second = dataset(path), dataset(path, "seed=7", "eval.seed=3", "eval.problems=2")
    places = [{row.place for row in part} for part in (first.train, first.held_out)]
    assert (len(places[0]), len(places[1])) == (45, 5)
    assert not places[0] & places[1]
    assert first == second
    assert len(dataset(path, "data.eval_fraction=0").held_out) == 0
    assert len(dataset(path, "data.limit=20", "data.eval_fraction=0.25").held_out) == 5


def test_splits_of_a_folder(tmp_path):
    jsonl(tmp_path / "train.jsonl", numbered(3))
    jsonl(tmp_path / "test.jsonl", [{"question": "t", "answer": "1"}])
    found = dataset(tmp_path, "data.eval_split=test")
    assert ([row.prompt for row in found.train], [row.prompt for row in found.held_out]) == (["q0", "q1", "q2"], ["t"])
    assert len(dataset(tmp_path, f"data.eval_source={tmp_path / 'test.jsonl'}").train) == 3


def test_held_out_rows_need_no_completion(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "completion": "c", "answer": "1"}])
    held = jsonl(tmp_path / "b.jsonl", [{"prompt": "other", "answer": "1"}, {"prompt": "p", "answer": "1"}])
    assert len(dataset(path, "train.objective=sft", f"data.eval_source={held}").held_out) == 1


GOOD = {"prompt": "p", "answer": "1", "completion": "c"}


@pytest.mark.parametrize(
    ("rows", "sets", "words"),
    [
        ([], [], ["data.source", "no rows in it"]),
        ([{"a": 1, "b": 2}], [], ["data.columns.prompt: no column called", "a, b"]),
        ([GOOD], ["data.columns.prompt=promt"], ["data.columns.prompt = 'promt'", "did you mean 'prompt'", "answer"]),
        ([GOOD], ["data.columns.answer=gold"], ["data.columns.answer = 'gold': no such column", "completion"]),
        ([GOOD, {"answer": "1"}], [], ["a.jsonl:2: has no 'prompt', which other rows have"]),
        ([GOOD, {**GOOD, "prompt": 3}], [], ["data.columns.prompt = 'prompt': a.jsonl:2 is of type int"]),
        ([{**GOOD, "prompt": "  "}], [], ["a.jsonl:1 is blank"]),
        ([{**GOOD, "prompt": []}], [], ["a.jsonl:1 is empty"]),
        ([{**GOOD, "prompt": [{"role": "user"}]}], [], ["a.jsonl:1 is of type list", "messages with role and content"]),
        ([{**GOOD, "answer": ["1", "2"]}], [], ["data.columns.answer = 'answer': a.jsonl:1 is of type list"]),
        ([GOOD], ["data.answer_after=####"], ["data.answer_after = '####'", "a.jsonl:1"]),
        ([GOOD, {**GOOD, "completion": None}], ["train.objective=sft"], ["a.jsonl:2 is of type NoneType; use text"]),
        ([{"prompt": "p", "answer": "1"}], ["train.objective=sft"], ["no column with completions", "prompt, answer"]),
        ([{"prompt": "p", "completion": "c"}], [], ["no column with answers", "reward.names"]),
        ([{**GOOD, "prompts": 1}], [], ["'prompts'", "rename it"]),
        ([GOOD], ["data.split=test"], ["data.split = 'test'", "one file"]),
        ([GOOD], ["data.subset=main"], ["data.subset = 'main'"]),
        ([GOOD], ["data.options={a=1}"], ["data.options", "only gym:NAME"]),
        ([GOOD], ["data.eval_source=a.jsonl", "data.eval_fraction=0.5"], ["data.eval_fraction = 0.5"]),
        ([GOOD], ["reward.options.overlong.max_length=3"], ["reward.options.overlong", "math-verify"]),
        ([GOOD], ["data.system=s", "data.style=qwen-math"], ["data.system = 's'", "takes none"]),
    ],
)
def test_wrong_data_is_said(tmp_path, rows, sets, words):
    path = jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(UsageError) as caught:
        dataset(path, *sets)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_same_rows_are_not_both_trained_on_and_measured_on(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", numbered(3))
    with pytest.raises(UsageError, match="the same rows"):
        dataset(path, f"data.eval_source={path}")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["data.split=test"], "data.split: needs data"),
        (["reward.names=math-verify"], "reward.names: needs data"),
        (["data.source=x/y", "reward.names=math-verfy"], "did you mean 'math-verify'"),
        (["data.source=x/y", "reward.names=math-verify", "reward.weights=1,2"], "2 for 1 reward.names"),
        (["data.source=x/y", "reward.names=overlong"], "reward.options.overlong"),
        (["data.source=x/y", "reward.names=boxed-format,boxed-format"], "named twice"),
        (["data.source=x/y", "data.style=chatty"], "data.style = 'chatty': must be"),
    ],
)
def test_wrong_settings_are_said_before_data_is_read(sets, words):
    with pytest.raises(UsageError) as caught:
        check_config(load_config(env={}, sets=sets))
    assert words in str(caught.value)


def test_what_is_recorded_works_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "a.jsonl", numbered(3))
    config = check_config(
        load_config(
            env={}, sets=["data.source=a.jsonl", "reward.names=overlong", "reward.options.overlong.max_length=9"]
        )
    )
    assert config.data.source == str(tmp_path / "a.jsonl")
    assert config.reward.options == {"overlong": {"max_length": 9, "buffer": None}}
    again = load_config(env={}, flags={"data": config.data.model_dump(), "reward": config.reward.model_dump()})
    assert check_config(again).identity() == config.identity()


def test_what_is_a_path_and_what_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    local = ["a.jsonl", "./a", "/a/b", "here", "here/rows.txt", "nothing"]
    assert [is_local(name) for name in local] == [True] * len(local)
    assert [is_local(name) for name in ("owner/name", "gym:chain_sum")] == [False, False]
    assert [absolute(name) for name in ("owner/name", "gym:x", None)] == ["owner/name", "gym:x", None]


def test_a_missing_file_names_those_that_are_there(tmp_path):
    jsonl(tmp_path / "train.jsonl", numbered(3))
    with pytest.raises(UsageError, match=r"no such file; did you mean 'train.jsonl'"):
        dataset(tmp_path / "trian.jsonl")
    with pytest.raises(UsageError, match=r"no files for data.split = 'test'; in it: train.jsonl"):
        dataset(tmp_path, "data.split=test")


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_published_problems_are_read():
    found = dataset(SHARED)
    assert (len(found.train), len(found.held_out)) == (2700, 300)
    assert found.train[0].columns["source"]


def test_gym_tasks_by_name():
    pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    found = dataset("gym:chain_sum", "data.limit=4", "data.options={min_terms=2, max_terms=2}")
    assert (len(found.train), len(found.held_out)) == (4, 4)
    assert not {row.prompt for row in found.train} & {row.prompt for row in found.held_out}
    assert all(row.columns["metadata"]["num_terms"] == 2 for row in found.train)
    assert found.rewards == ("reasoning-gym",)
    assert dataset("gym:chain_sum", "data.limit=4", "data.options={min_terms=2, max_terms=2}") == found
    with pytest.raises(UsageError, match="did you mean 'chain_sum'"):
        dataset("gym:chain_sums")
    with pytest.raises(UsageError, match="data.options"):
        dataset("gym:chain_sum", "data.options={nothing=1}")


def test_without_reasoning_gym_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(UsageError, match=r"gym:chain_sum.*pip install 'pte-cli\[gym\]'"):
        dataset("gym:chain_sum")


def test_a_data_set_of_the_hub(monkeypatch):
    """Asked for by id, subset and split; the hub itself is not reached in tests."""
    import datasets

    asked = []

    def load(*arguments, **named):
        asked.append((arguments, named))
        if named["split"] == "nowhere":
            raise ValueError("Unknown split")
        return datasets.Dataset.from_list(numbered(3))

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = dataset("owner/name", "data.subset=main", "data.limit=2", "data.eval_fraction=0")
    assert asked == [(("owner/name", "main"), {"split": "train"})]
    assert [row.place for row in found.train] == ["owner/name row 0", "owner/name row 1"]
    with pytest.raises(UsageError, match=r"data.source = 'owner/name': .*data.split = 'nowhere' \(Unknown split\)"):
        dataset("owner/name", "data.split=nowhere")
