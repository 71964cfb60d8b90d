"""A whole evaluation, on a model whose answers are known: scores, seeds, resuming, comparing."""

from __future__ import annotations

import json

import pytest
from chain_model import chain_model

from pte_cli.config import validate
from pte_cli.errors import UsageError
from pte_cli.eval import bench
from pte_cli.eval.bench import Evaluation, Plan
from pte_cli.eval.benchmarks import BenchProblem
from pte_cli.eval.store import read_recorded

SUMS = [BenchProblem("a", "3+4?", "7"), BenchProblem("b", "4+4?", "8"), BenchProblem("c", "go on!", "7")]
MORE = [BenchProblem("a", "10-3?", "7")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chain_model(tmp_path_factory.mktemp("models") / "chain")


def settings(folder, rows=4, **evict):
    return validate(
        {
            "model": {"name": str(folder)},
            "evict": {"budget": 12, **evict},
            "sampling": {"rows": rows, "max_new_tokens": 20},
        }
    )


def plan(config, samples=1, temperature=0.0, benchmarks=None, ks=None, seed=0):
    sampling = config.sampling.model_copy(update={"temperature": temperature})
    return Plan(benchmarks or {"sums": SUMS}, samples, ks or tuple({1, samples}), sampling, seed, "auto")


def evaluated(config, asked, out=None, compare=None):
    evaluation = Evaluation(config, None, asked, out, compare)
    evaluation.generate(lambda *_: None)
    return evaluation.finish("jsonl")


def completions(out, name="sums"):
    return {(row["id"], row["sample"]): row["completion"] for row in read_recorded(out, name)}


def test_greedy_scores_and_what_is_recorded(folder, tmp_path):
    config = settings(folder)
    result = evaluated(config, plan(config, benchmarks={"sums": SUMS, "more": MORE}), tmp_path / "out")
    sums, more = result["benchmarks"]["sums"], result["benchmarks"]["more"]
    assert sums["average"]["mean"] == pytest.approx(1 / 3)
    assert sums["reasons"] == {"right": 1, "wrong": 1, "no_box": 1}
    assert sums["truncated"] == pytest.approx(1 / 3)
    # \boxed{7} and an end token are 10 tokens; the one that goes on is cut off at 20.
    assert sums["mean_length"] == pytest.approx((10 + 10 + 20) / 3)
    # The third has 6 of 12 slots for thinking and gives up 1 each time: before each of the 7th to the 19th fed token.
    # The others have 8 and give up 2: once, before the 9th and last.
    assert sums["evictions"] == pytest.approx((1 + 1 + 13) / 3)
    assert (more["average"]["mean"], more["average"]["low"]) == (1.0, None)
    assert result["mean"] == pytest.approx((1 / 3 + 1) / 2)
    assert result["tokens_per_second"] > 0
    # 4 rows, 1 layer, 2 KV heads, 12 slots of 68 float32 keys and values, 8 bytes a position.
    assert result["peak_cache_bytes"] == 4 * (2 * 2 * 12 * 68 * 4 + 12 * 8)
    [first, second, third] = sorted(read_recorded(tmp_path / "out", "sums"), key=lambda row: row["id"])
    assert first == {
        "id": "a", "sample": 0, "problem": "3+4?", "answer": "7", "prompt": "3+4?", "completion": "\\boxed{7}",
        "finish": "stop", "length": 10, "evictions": 1, "extracted": "7", "score": 1.0, "reason": "right",
        "correct": True, "grader": result["grader"],
    }  # fmt: skip
    assert (second["extracted"], second["correct"]) == ("7", False)
    assert (third["completion"], third["finish"], third["extracted"]) == ("!" * 20, "length", None)
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["mean"] == result["mean"]


def test_samples_of_a_problem_differ_and_do_not_depend_on_batch_or_company(folder, tmp_path):
    config = settings(folder)
    evaluated(config, plan(config, 8, 1.0), tmp_path / "four")
    four = completions(tmp_path / "four")
    assert {four["a", i] for i in range(8)} == {"\\boxed{7}", "\\boxed{8}"}
    one = settings(folder, rows=1)
    alone = {"sums": [SUMS[1]]}
    evaluated(one, plan(one, 8, 1.0, alone), tmp_path / "one")
    assert completions(tmp_path / "one") == {key: text for key, text in four.items() if key[0] == "b"}
    evaluated(config, plan(config, 8, 1.0, seed=1), tmp_path / "other")
    assert completions(tmp_path / "other") != four


def test_pass_at_k_from_the_samples(folder, tmp_path):
    config = settings(folder)
    result = evaluated(config, plan(config, 8, 1.0, {"sums": SUMS[:1]}, ks=(1, 2, 8)), tmp_path)
    right = sum(text == "\\boxed{7}" for text in completions(tmp_path).values())
    found = result["benchmarks"]["sums"]
    assert found["average"]["mean"] == pytest.approx(right / 8)
    assert found["pass_at"][2]["mean"] == pytest.approx(1 - (8 - right) * (7 - right) / 56)
    assert found["pass_at"][8]["mean"] == 1.0


def test_an_interrupted_evaluation_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    config = settings(folder, rows=2)
    asked = plan(config, 4, 1.0)
    expected = evaluated(config, asked, tmp_path / "whole")
    monkeypatch.setattr(bench, "CHUNK", 2)

    def stop(done, total, right):
        if done >= 4:
            raise KeyboardInterrupt

    evaluation = Evaluation(config, None, asked, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        evaluation.generate(stop)
    with (tmp_path / "out" / "sums.jsonl").open("a") as file:
        file.write('{"id": "c", "sample": 3, "compl')
    again = Evaluation(config, None, asked, tmp_path / "out")
    assert 4 <= again.recorded < 12
    assert len(again.missing()) == 12 - again.recorded
    again.generate(lambda *_: None)
    result = again.finish("jsonl")
    assert completions(tmp_path / "out") == completions(tmp_path / "whole")
    assert result["benchmarks"] == expected["benchmarks"]
    lines = (tmp_path / "out" / "sums.jsonl").read_text().splitlines()
    assert len(lines) == 12


def test_a_finished_evaluation_loads_no_model_and_can_grow(folder, tmp_path, monkeypatch):
    config = settings(folder)
    first = evaluated(config, plan(config, 2, 1.0), tmp_path)
    more = evaluated(config, plan(config, 3, 1.0, {"sums": SUMS, "more": MORE}), tmp_path)
    assert more["recorded_before"] == 6
    assert len(completions(tmp_path)) == 9
    monkeypatch.setattr("pte_cli.rollout.prepare.load", lambda *_, **__: pytest.fail("loaded a model"))
    again = evaluated(config, plan(config, 2, 1.0), tmp_path)
    assert again["benchmarks"] == first["benchmarks"]
    assert again["tokens_per_second"] is None


def test_other_settings_do_not_go_on(folder, tmp_path):
    config = settings(folder)
    evaluated(config, plan(config), tmp_path)
    other = settings(folder, policy="full")
    with pytest.raises(UsageError, match="made with evict.policy = 'sliding', now it is 'full'"):
        Evaluation(other, None, plan(other), tmp_path)


def test_paired_difference_from_recorded_samples(folder, tmp_path):
    config = settings(folder)
    evaluated(config, plan(config), tmp_path / "seven")
    rows = [json.loads(line) for line in (tmp_path / "seven" / "sums.jsonl").read_text().splitlines()]
    (tmp_path / "eight").mkdir()
    header = json.loads((tmp_path / "seven" / "bench.json").read_text())
    (tmp_path / "eight" / "bench.json").write_text(json.dumps({**header, "encoder": "pte"}))
    # The other one has the third right and the first wrong.
    changed = [{**row, "score": float(row["id"] == "c")} for row in rows]
    (tmp_path / "eight" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    found = evaluated(config, plan(config), tmp_path / "seven", tmp_path / "eight")["compare"]
    difference = found["difference"]["sums"]
    # Differences 1, 0, -1: mean 0, s = 1, t(0.975, 2) = 4.302653: beyond -1..1, to which it is cut.
    assert (difference["mean"], difference["low"], difference["high"], difference["n"]) == (0.0, -1.0, 1.0, 3)
    assert found["differs"] == {"encoder": ["pte", "none"]}


def test_what_can_not_be_compared_is_refused_before_a_model_is_loaded(folder, tmp_path):
    config = settings(folder)
    evaluated(config, plan(config, benchmarks={"sums": SUMS[:2]}), tmp_path / "two")
    with pytest.raises(UsageError, match="has no samples of 1 of the 3 problems of sums, the first is 'c'"):
        Evaluation(config, None, plan(config), None, tmp_path / "two")
    header = json.loads((tmp_path / "two" / "bench.json").read_text())
    (tmp_path / "two" / "bench.json").write_text(json.dumps({**header, "grader": "pte 0"}))
    with pytest.raises(UsageError, match="was graded by pte 0, this is .*; their scores can't be compared"):
        Evaluation(config, None, plan(config, benchmarks={"sums": SUMS[:2]}), None, tmp_path / "two")


def test_a_prompt_that_does_not_fit_is_named_before_the_first_generation(folder, tmp_path):
    config = settings(folder)
    problems = {"sums": [*SUMS, BenchProblem("long", "1+1+1+1+1?", "5")]}
    evaluation = Evaluation(config, None, plan(config, benchmarks=problems), tmp_path / "out")
    with pytest.raises(UsageError, match="problem 'long' of sums: evict.budget = 12: a prompt of 10 tokens leaves 2"):
        evaluation.generate(lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_words_the_tokenizer_does_not_know_are_named():
    config = validate({})
    evaluation = Evaluation(config, None, plan(config, benchmarks={"x": [BenchProblem("a", "? a b Hello", "1")]}))
    with pytest.raises(UsageError, match="problem 'a' of x: the model's tokenizer has no token for 'Hello'"):
        evaluation.generate(lambda *_: None)


def test_reasoning_that_the_prompt_opened_is_graded_as_reasoning(tmp_path):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}?{% endif %}"
    folder = chain_model(tmp_path / "chain", template)
    config = settings(folder, budget=200)
    asked = plan(config, benchmarks={"sums": SUMS[:1]})
    opened = Plan(**{**vars(asked), "style": "r1-distill"})
    result = evaluated(config, opened, tmp_path / "out")
    [row] = read_recorded(tmp_path / "out", "sums")
    assert row["prompt"].endswith("<think>\n")
    assert row["completion"].startswith("<think>\n")
    assert result["benchmarks"]["sums"]["reasons"] == {"open_think": 1}
