"""Prompts as the model sees them: the published conventions, and the start token exactly once."""

from __future__ import annotations

from typing import get_args

import pytest
from tokenizing import tokenizer

from pte_cli.config import DataConfig, ModelConfig
from pte_cli.errors import UsageError
from pte_cli.model.load import load_tokenizer
from pte_cli.tasks.prompts import BOXED, STYLES, encode_prompt, render

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<|im_start|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|im_end|>{% endif %}"
)


def test_plain_is_the_text_as_it_is():
    tiny = load_tokenizer(ModelConfig())
    rendered = render(tiny, "? c a : a b", "plain")
    assert rendered.text == "? c a : a b"
    assert tiny.convert_ids_to_tokens(list(rendered.ids)) == ["?", "c", "a", ":", "a", "b"]


def test_qwen_math_is_the_published_prompt():
    """README of QwenLM/Qwen2.5-Math: this system prompt, then the problem, in ChatML."""
    rendered = render(tokenizer(CHATML), "What is 1+1?", "qwen-math")
    assert rendered.text == (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("opening", ["", "<think>", "<think>\n"])
def test_r1_distill_opens_the_thinking_exactly_once(opening):
    """README of deepseek-ai/DeepSeek-R1: no system prompt, the instruction in the user's turn, then `<think>\\n`."""
    rendered = render(tokenizer(R1 + opening.replace("\n", "{{ '\n' }}")), "1+1", "r1-distill")
    assert rendered.text == f"<s><|im_start|>1+1\n{BOXED}<|im_end|><think>\n"
    assert rendered.thinks


@pytest.mark.parametrize("in_text", [False, True])
@pytest.mark.parametrize("by_tokenizer", [False, True])
@pytest.mark.parametrize("style", ["plain", "chat"])
def test_the_start_token_is_there_exactly_once(in_text, by_tokenizer, style):
    start = "{{ bos_token }}" if in_text else ""
    made = tokenizer(start + CHATML, adds_start=by_tokenizer)
    rendered = render(made, "<s>hello" if in_text else "hello", style) if style == "plain" else render(made, "hello")
    assert rendered.ids.count(made.bos_token_id) == int(in_text or by_tokenizer)
    if in_text or by_tokenizer:
        assert rendered.ids[0] == made.bos_token_id


def test_a_doubled_start_token_is_made_one():
    made = tokenizer(CHATML)
    assert encode_prompt(made, "<s><s>hi").count(made.bos_token_id) == 1


def test_no_end_token_follows_a_prompt():
    made = tokenizer(CHATML, adds_end=True)
    assert made("hi")["input_ids"][-1] == made.eos_token_id
    assert made.eos_token_id not in render(made, "hi", "plain").ids


def test_template_tokens_are_special_tokens():
    made = tokenizer(CHATML)
    assert made.decode(render(made, "hello", "chat").ids[:1]) == "<|im_start|>"


def test_auto_takes_the_template_where_there_is_one():
    assert render(tokenizer(CHATML), "hi").text.endswith("<|im_start|>assistant\n")
    assert render(tokenizer(None), "hi").text == "hi"


def test_messages_and_system_prompts():
    made = tokenizer(CHATML)
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    body = "".join(f"<|im_start|>{t['role']}\n{t['content']}<|im_end|>\n" for t in turns)
    assert render(made, turns, "chat").text == f"{body}<|im_start|>assistant\n"
    assert render(made, turns, "chat", system="s").text == (
        f"<|im_start|>system\ns<|im_end|>\n{body}<|im_start|>assistant\n"
    )
    own = [{"role": "system", "content": "own"}, *turns]
    assert render(made, own, "chat", system="s").text.startswith("<|im_start|>system\nown<|im_end|>\n<|im_start|>user")
    assert turns[-1]["content"] == "c"
    render(made, turns, "r1-distill")
    assert turns[-1]["content"] == "c"


@pytest.mark.parametrize(
    ("template", "prompt", "style", "system", "words"),
    [
        (None, "hi", "chat", None, ["data.style = 'chat'", "no chat template", "'plain'"]),
        (None, "hi", "qwen-math", None, ["data.style = 'qwen-math'", "no chat template"]),
        (CHATML, "hi", "chatt", None, ["data.style = 'chatt'", "did you mean 'chat'"]),
        (CHATML, "hi", "r1-distill", "s", ["data.system = 's'", "takes none"]),
        (None, "hi", "auto", "s", ["data.system = 's'", "'plain' takes none"]),
        (None, [{"role": "user", "content": "a"}], "auto", None, ["chat messages", "chat template"]),
        (CHATML, [{"role": "assistant", "content": "a"}], "chat", None, ["last message", "'assistant'"]),
        (CHATML, [], "chat", None, ["last message"]),
        (
            CHATML,
            [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
            "r1-distill",
            None,
            ["no system message"],
        ),
        (R1, "hi", "chat", "s", ["chat template refuses", "no system"]),
    ],
)
def test_what_does_not_fit_is_said(template, prompt, style, system, words):
    with pytest.raises(UsageError) as caught:
        render(tokenizer(template), prompt, style, system)
    assert all(word in str(caught.value) for word in words), caught.value


def test_every_style_renders_with_a_template():
    for style in STYLES:
        assert "2+2" in render(tokenizer(CHATML), "2+2", style).text


def test_the_setting_takes_every_style():
    assert get_args(DataConfig.model_fields["style"].annotation) == ("auto", *STYLES)
