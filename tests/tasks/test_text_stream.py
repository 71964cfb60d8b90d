"""Text as it comes: the pieces, joined, are the whole; and each is given out as soon as it is certain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizing import tokenizer
from transformers import PreTrainedTokenizerFast

from pte_cli.tasks.text_stream import TextStream

BYTES = tokenizer(None)
PIECES = ["▁", "▁the", "▁a", "n", "t", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<unk>"]


def sentence_pieces():
    """As Llama 2's: blanks are part of the words, the first one is dropped, unknown letters are bytes."""
    core = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], unk_token="<unk>", byte_fallback=True)
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=core)


SENTENCE_PIECES = sentence_pieces()


def pieces(tokens, ids):
    stream = TextStream(tokens)
    return [*(stream.add(token) for token in ids), stream.finish()]


def test_a_character_of_several_tokens_comes_when_it_is_whole():
    ids = BYTES("aé😀b", add_special_tokens=False)["input_ids"]
    assert pieces(BYTES, ids) == ["a", "", "é", "", "", "", "😀", "b", ""]


def test_half_a_character_at_the_end_is_given_out_at_the_end():
    ids = BYTES("a😀", add_special_tokens=False)["input_ids"][:-1]
    assert pieces(BYTES, ids) == ["a", "", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_blanks_between_words_are_kept_and_the_first_is_dropped():
    ids = [PIECES.index(piece) for piece in ("▁the", "▁a", "n", "▁a")]
    assert pieces(SENTENCE_PIECES, ids) == ["the", " a", "n", " a", ""]


@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_join_to_the_decoded_whole(ids):
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids, clean_up_tokenization_spaces=False)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text):
    ids = BYTES(text, add_special_tokens=False)["input_ids"]
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_sentence_pieces_join_to_the_decoded_whole(count):
    ids = [(7 * i + 3 * i * i) % 5 for i in range(count)]
    whole = SENTENCE_PIECES.decode(ids, clean_up_tokenization_spaces=False)
    assert "".join(pieces(SENTENCE_PIECES, ids)) == whole
