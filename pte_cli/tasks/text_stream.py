"""Token ids in, text out, as soon as it can't change any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder shows for bytes that are no whole character (yet)."""
CONTEXT = 4
"""Tokens decoded again before the new ones: a tokenizer writes the first token of a text in its own way."""


class TextStream:
    """Decodes one sequence token by token. The pieces, joined, are the text of the whole sequence.

    A token may hold part of a character, and its text may depend on the tokens before it (blanks between words). So a
    few tokens are decoded twice, without and with the new one, and what the new one adds is given out; while that ends
    in the middle of a character, it waits for the next.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.given = 0
        """Tokens whose text has been given out."""

    def add(self, token: int) -> str:
        """The text that is certain now and was not before; often empty."""
        self.ids.append(token)
        new = self._new_text()
        if new.endswith(UNFINISHED):
            return ""
        self.given = len(self.ids)
        return new

    def finish(self) -> str:
        """What is left at the end, unfinished characters included."""
        new = self._new_text()
        self.given = len(self.ids)
        return new

    def _new_text(self) -> str:
        start = max(0, self.given - CONTEXT)
        before = self._decode(self.ids[start : self.given])
        return self._decode(self.ids[start:])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
