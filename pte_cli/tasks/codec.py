"""Between a task's text and a model's token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pte_cli.api import Problem
from pte_cli.errors import UsageError


@dataclass(frozen=True)
class Worked:
    """One worked example as token ids; `answer` is how many tokens at the completion's end are the answer."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    answer: int


class Codec:
    """Encodes problems and decodes completions. Any of `ends` ends a completion; worked ones end with the first.

    words: what the task needs as single tokens; UsageError for the first that the tokenizer does not know.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], words: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.ends = tuple(ends)
        if (missing := self.unknown_word(words)) is not None:
            raise UsageError(f"model.name: its tokenizer has no token for {missing!r}, which the task writes")

    def prompt(self, problem: Problem) -> tuple[int, ...]:
        """The prompt's ids, without special tokens."""
        return self._encode(problem.prompt)

    def worked(self, problem: Problem) -> Worked:
        """The worked completion: thinking, answer, end token."""
        # The blank belongs to the word after it, as most tokenizers have it.
        thinking, answer = self._encode(f" {problem.thinking}"), (*self._encode(f" {problem.answer}"), self.ends[0])
        return Worked(self.prompt(problem), thinking + answer, len(answer))

    def text(self, completion: Sequence[int]) -> str:
        """A completion as text, without end tokens."""
        kept = [token for token in completion if token not in self.ends]
        return self.tokenizer.decode(kept, clean_up_tokenization_spaces=False)

    def unknown_word(self, words: Iterable[str]) -> str | None:
        """The first word the tokenizer has no tokens for; None where it can write them all."""
        unknown = self.tokenizer.unk_token_id
        if unknown is None:
            unknown = self.tokenizer.pad_token_id
        # A tokenizer's own name for the unknown token is no unknown word.
        sign = None if unknown is None else self.tokenizer.convert_ids_to_tokens(unknown)
        return next((word for word in words if unknown in self._encode(word) and word != sign), None)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a completion: the tokenizer's end token and those of the model's generation settings."""
    listed = model.generation_config.eos_token_id if model.generation_config is not None else None
    more = [listed] if isinstance(listed, int) else list(listed or [])
    found = dict.fromkeys(([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]) + more)
    if not found:
        raise UsageError("model.name: neither its tokenizer nor its generation settings name an end token")
    return tuple(found)
