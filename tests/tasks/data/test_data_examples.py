"""Rows as examples: order, recorded completions, and what rewards are called with."""

from __future__ import annotations

import math
from itertools import islice

import pytest
from tokenizing import END, tokenizer

from pte_cli.config import RewardConfig
from pte_cli.errors import PteError, UsageError
from pte_cli.tasks.codec import Codec
from pte_cli.tasks.data.columns import Columns
from pte_cli.tasks.data.dataset import Row
from pte_cli.tasks.data.examples import DataExamples, build_rewards, epochs
from pte_cli.tasks.data.rendered import Example, RenderedDataset
from pte_cli.tasks.examples import Completion
from pte_cli.tasks.prompts import render
from pte_cli.tasks.rewards import NamedReward

TOKENIZER = tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def examples(rows, rewards=(), *, style="plain", seed=0, imitates=False):
    made = tuple(Example(row, render(TOKENIZER, row.prompt, style)) for row in rows)
    dataset = RenderedDataset(made, made, Columns("prompt", "answer", None), (), style)
    return DataExamples(dataset, rewards, Codec(TOKENIZER, [TOKENIZER.eos_token_id]), seed=seed, imitates=imitates)


def row(prompt="p", completion="c", **columns):
    return Row(f"a.jsonl:{columns.get('line', 1)}", prompt, completion, columns)


def ended(text, finish="stop"):
    return Completion((*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id), finish)


def test_every_row_once_an_epoch_in_a_seeded_order():
    order = list(islice(epochs(10, seed=3), 30))
    parts = [order[:10], order[10:20], order[20:]]
    assert all(sorted(part) == list(range(10)) for part in parts)
    assert len({tuple(part) for part in parts}) == 3
    assert order == list(islice(epochs(10, seed=3), 30))
    assert order != list(islice(epochs(10, seed=4), 30))


def test_a_recorded_completion_is_tokenised_apart_and_ends_with_one_end_token():
    for text in ("abc", f"abc{END}"):
        [worked] = examples([row("x", text)], imitates=True).worked(1)
        assert TOKENIZER.decode(worked.prompt) == "x"
        assert TOKENIZER.convert_ids_to_tokens(list(worked.completion)) == ["a", "b", "c", END]
        assert worked.answer == 0


def test_an_end_token_inside_a_completion_is_refused():
    with pytest.raises(UsageError, match="a.jsonl:1: the end token '</s>' is in the middle"):
        examples([row("x", f"a{END}b")], imitates=True)


@pytest.mark.parametrize("text", ["so\n</think>4", "<think>so\n</think>4", "<think>\nso\n</think>4"])
def test_thinking_is_opened_once_between_prompt_and_completion(text):
    [worked] = examples([row("x", text)], style="r1-distill", imitates=True).worked(1)
    whole = TOKENIZER.decode([*worked.prompt, *worked.completion])
    assert whole.count("<think>") == 1
    assert whole.endswith("<think>\nso\n</think>4</s>")


def test_rewards_are_called_as_trl_calls_them():
    seen = {}

    def reward(prompts, completions, completion_ids, **columns):
        seen.update(prompts=prompts, completions=completions, completion_ids=completion_ids, columns=columns)
        return [1.0, None]

    turns = [{"role": "user", "content": "b"}]
    one = examples([row("a", level=1), row(turns, level=2, extra="e")], [NamedReward("mine", reward)], style="chat")
    first, second = (one.held_out(2, 0)[i] for i in (0, 1))
    scores = one.score([first, second], [ended("hi"), ended("ho", "length")])
    assert seen["prompts"] == ["a", turns]
    assert seen["completions"] == ["hi", [{"role": "assistant", "content": "ho"}]]
    assert seen["completion_ids"] == [list(ended("hi").ids), list(ended("ho").ids)]
    assert seen["columns"] == {"level": [1, 2], "extra": [None, "e"], "finish": ["stop", "length"]}
    assert scores.rewards[0] == 1
    assert math.isnan(scores.rewards[1])
    assert list(scores.right) == [True, None]


def test_right_is_what_the_first_reward_gives_one_and_what_ended():
    def ones(prompts, completions, completion_ids, **_):
        return [1.0] * len(prompts)

    def halves(prompts, completions, completion_ids, **_):
        return [0.5] * len(prompts)

    one = examples([row()], [NamedReward("a", ones, 2.0), NamedReward("b", halves)])
    scores = one.score(one.questions(1) * 2, [ended("x"), ended("x", "length")])
    assert list(scores.rewards) == [2.5, 2.5]
    assert list(scores.right) == [True, False]


def test_an_exception_names_reward_and_row():
    def broken(prompts, completions, completion_ids, line, **_):
        return [1 / (n - 2) for n in line]

    one = examples([row(line=1), row(line=2)], [NamedReward("broken", broken)])
    with pytest.raises(PteError, match=r"reward 'broken' failed at row a.jsonl:2: ZeroDivisionError"):
        one.score(one.held_out(2, 0), [ended("x"), ended("x")])


def test_math_verify_grades_the_mapped_answer_and_refuses_what_was_cut_off():
    one = examples([row(answer="1/2", problem="p")], build_rewards(["math-verify"], RewardConfig()))
    answers = [ended(r"\boxed{0.5}"), ended(r"\boxed{0.5} and so", "length"), ended(r"\boxed{2}")]
    scores = one.score(one.questions(1) * 3, answers)
    assert list(scores.rewards) == [1.0, 0.0, 0.0]


def test_held_out_questions_do_not_depend_on_what_was_drawn():
    rows = [row(prompt=f"p{i}") for i in range(20)]
    one = examples(rows)
    before = one.held_out(5, 1)
    one.questions(7)
    assert one.held_out(5, 1) == before
    assert one.held_out(5, 2) != before
    assert len(one.held_out(99, 0)) == 20
