"""From a problem, as text or chat messages, to the token ids a model starts from.

Text is tokenised here once; what is generated or trained on afterwards are these ids, never text that is tokenised
again. Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pte_cli.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages
"""A problem's text, or chat messages `{"role": ..., "content": ...}` of which the last is the user's."""

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
THINK = "<think>"
AUTO = "auto"


@dataclass(frozen=True)
class Style:
    """A convention of prompting.

    chat: through the tokenizer's chat template. system: the system prompt where neither the settings nor the messages
    have one. takes_system: whether they may. instruction: added to the end of the user's last message. thinks: the
    completion starts inside `<think>`.
    """

    summary: str
    chat: bool = True
    system: str | None = None
    takes_system: bool = True
    instruction: str = ""
    thinks: bool = False


STYLES: Mapping[str, Style] = {
    "plain": Style("the text as it is", chat=False, takes_system=False),
    "chat": Style("the tokenizer's chat template"),
    # The instruction Qwen2.5-Math's README and evaluation give its instruct models as the system prompt.
    "qwen-math": Style("chat with Qwen2.5-Math's system prompt", system=BOXED, takes_system=False),
    # DeepSeek-R1's README, "Usage Recommendations": no system prompt, the same instruction in the user's turn, every
    # output starts with "<think>\n". Newer templates of these models open it themselves, older ones do not.
    "r1-distill": Style(
        "chat as DeepSeek-R1 recommends: no system prompt, starts with <think>",
        takes_system=False,
        instruction=f"\n{BOXED}",
        thinks=True,
    ),
}
"""The named styles. `auto` is `chat` where the tokenizer has a template, else `plain`."""


@dataclass(frozen=True)
class Rendered:
    """A prompt as the model sees it: `ids` is what it is fed, `text` what was tokenised.

    The start token is in `ids` exactly once where the model has one, also when `text` does not show it.
    """

    text: str
    ids: tuple[int, ...]

    @property
    def thinks(self) -> bool:
        """Whether the completion starts inside `<think>`."""
        return self.text.rstrip("\n").endswith(THINK)


def is_text(value: str) -> bool:
    """Whether a tokenizer can read it. Half a surrogate pair, which JSON can spell, is no text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_style(style: str, system: str | None = None) -> None:
    """UsageError for a style that is none, or a system prompt where the style has no place for one."""
    if style != AUTO and style not in STYLES:
        raise UsageError(f"data.style = {style!r}: unknown prompt style; {did_you_mean(style, [AUTO, *STYLES])}")
    if system is not None and style != AUTO and not STYLES[style].takes_system:
        raise UsageError(f"data.system = {system!r}: the style {style!r} takes none; use data.style = 'chat'")


def resolve_style(tokenizer: PreTrainedTokenizerBase, style: str, system: str | None = None) -> str:
    """The name in STYLES that `style` comes to with this tokenizer. UsageError where it can't be had."""
    check_style(style, system)
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if style == AUTO:
        style = "chat" if has_template else "plain"
        check_style(style, system)
    if STYLES[style].chat and not has_template:
        raise UsageError(
            f"data.style = {style!r}: the model's tokenizer has no chat template; use data.style = 'plain', or an "
            "instruction-tuned model"
        )
    return style


def render(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, style: str = AUTO, system: str | None = None
) -> Rendered:
    """The prompt in a style, up to where the completion starts.

    system: a system prompt for the style `chat`; one that the messages bring along goes before it. UsageError for a
    style that is unknown or can't be had with this tokenizer, and for messages that the style or the template refuses.
    """
    name = resolve_style(tokenizer, style, system)
    chosen = STYLES[name]
    text = _chat_text(tokenizer, prompt, name, system) if chosen.chat else _plain_text(prompt, name)
    if chosen.thinks:
        opened = text.rstrip("\n")
        text = f"{opened if opened.endswith(THINK) else text + THINK}\n"
    return Rendered(text, encode_prompt(tokenizer, text))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The text's ids, with exactly one start token where the tokenizer adds one or the text begins with it.

    No other special token is added: an end token at the end of a prompt would end the completion before it starts.
    """
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    start = tokenizer.bos_token_id
    if start is None:
        return ids
    while ids[:1] == (start,) and (ids[1:2] == (start,) or _adds_start(tokenizer)):
        ids = ids[1:]
    return (start, *ids) if _adds_start(tokenizer) else ids


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The ids of text that follows other tokens: no special token is added."""
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _adds_start(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer puts its start token before a text of its own accord."""
    return list(tokenizer("a")["input_ids"][:1]) == [tokenizer.bos_token_id]


def _plain_text(prompt: Prompt, name: str) -> str:
    if isinstance(prompt, str):
        return prompt
    raise UsageError(
        f"data.style = {name!r}: the prompts are chat messages; they need a tokenizer with a chat template and "
        "data.style = 'chat'"
    )


def _chat_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str, system: str | None) -> str:
    style = STYLES[name]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    if not messages or messages[-1].get("role") != "user" or not isinstance(messages[-1].get("content"), str):
        last = messages[-1].get("role") if messages else "nothing"
        raise UsageError(f"data.style = {name!r}: a prompt's last message must be the user's text; it is {last!r}")
    own = messages[0].get("role") == "system"
    if own and not style.takes_system:
        raise UsageError(
            f"data.style = {name!r}: takes no system message but a prompt has one; use data.style = 'chat'"
        )
    before = None if own else system if system is not None else style.system
    messages[-1]["content"] += style.instruction
    if before is not None:
        messages.insert(0, {"role": "system", "content": before})
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever the template raises: jinja's own errors and those it was written to raise
        raise UsageError(
            f"data.style = {name!r}: the tokenizer's chat template refuses the messages ({error})"
        ) from None
    return str(text)
