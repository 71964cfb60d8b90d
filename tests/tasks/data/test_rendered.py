"""Prompts as token ids, and those that the budget can't hold."""

from __future__ import annotations

import json

import pytest
from helpers import policy
from tokenizing import tokenizer

from pte_cli.config import ModelConfig, load_config
from pte_cli.errors import UsageError
from pte_cli.model.load import load_tokenizer
from pte_cli.tasks.data.dataset import load_dataset
from pte_cli.tasks.data.rendered import render_dataset

LENGTHS = [10, 30, 8, 60, 45, 31, 12, 50]
"""Characters, which are tokens of the tokenizer here."""


def rendered(folder, *sets, lengths=LENGTHS, made=None, rule=None):
    path = folder / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{i}".ljust(n, "x"), "answer": "1"}) + "\n" for i, n in enumerate(lengths))
    )
    config = load_config(env={}, flags={"data.source": str(path)},
                         sets=["train.objective=grpo", "evict.budget=34", "data.eval_fraction=0", *sets])  # fmt: skip
    return render_dataset(load_dataset(config), config, made or tokenizer(None), rule or policy("sliding"))


def test_rows_that_do_not_fit_are_named_with_both_lengths(tmp_path):
    """Budget 34 with 4 for thinking holds 30 tokens: 31, 45, 50 and 60 do not fit."""
    with pytest.raises(UsageError) as caught:
        rendered(tmp_path)
    message = str(caught.value)
    assert message.startswith("evict.budget = 34: too long for it with 4 tokens for thinking: ")
    assert "a.jsonl:4 (60 tokens), a.jsonl:5 (45 tokens), a.jsonl:6 (31 tokens) and 1 more" in message
    assert "use at least 64" in message
    assert rendered(tmp_path, "evict.budget=64").longest == 60


def test_they_can_be_dropped(tmp_path):
    found = rendered(tmp_path, "data.too_long=drop")
    assert [len(example.prompt.ids) for example in found.train] == [10, 30, 8, 12]
    assert found.dropped == 4
    with pytest.raises(UsageError, match=r"evict.budget = 34: not one of 1 prompts fits; the shortest has 40 tokens"):
        rendered(tmp_path, "data.too_long=drop", lengths=[40])


def test_without_a_bound_everything_fits(tmp_path):
    assert rendered(tmp_path, rule=policy("full")).longest == 60


def test_a_policy_that_lets_go_of_the_prompt_needs_less_room(tmp_path):
    """`sink` that may evict the prompt pins 4 tokens: a prompt of 34 still fits a budget of 34, one of 35 does not."""
    sink = policy("sink", n_sink=4, evict_prompt=True)
    assert rendered(tmp_path, lengths=[34], rule=sink).longest == 34
    with pytest.raises(UsageError, match=r"a.jsonl:1 \(35 tokens\); use at least 35"):
        rendered(tmp_path, lengths=[35], rule=sink)


def test_the_style_counts(tmp_path):
    """The template's own tokens are part of the prompt."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert rendered(tmp_path, made=tokenizer(template), lengths=[10]).longest == 11
    with pytest.raises(UsageError, match=r"data.style = 'chat': the model's tokenizer has no chat template"):
        rendered(tmp_path, "data.style=chat")


def test_a_row_that_the_template_refuses_is_named(tmp_path):
    template = "{{ raise_exception('not today') }}"
    with pytest.raises(UsageError, match=r"a.jsonl:1: data.style = 'chat': .* refuses the messages \(not today\)"):
        rendered(tmp_path, made=tokenizer(template), lengths=[10])


def test_text_that_the_tokenizer_does_not_know_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"model.name: .*unknown to its tokenizer, first at a.jsonl:1"):
        rendered(tmp_path, made=load_tokenizer(ModelConfig()), lengths=[10])
