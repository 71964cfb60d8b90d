"""A model folder whose text is known beforehand: the next character follows from the last one alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from tokenizing import END, tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

NEXT = {
    "?": "\\",
    "\\": "b",
    "b": "o",
    "o": "x",
    "x": "e",
    "e": "d",
    "d": "{",
    "{": "78",
    "7": "}",
    "8": "}",
    "}": END,
    "!": "!",
    "é": "é",
}
"""After ? comes a boxed 7 (greedy), or 7 and 8 with equal chances; ! goes on for ever."""
HIDDEN = 272


def chain_model(folder: Path, template: str | None = None) -> Path:
    """Save it to `folder`, with a byte-level tokenizer. Attention and MLP are computed but add nothing."""
    tokens = tokenizer(template)
    config = Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        bos_token_id=None,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokens), HIDDEN))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        head = torch.zeros(len(tokens), HIDDEN)
        for here, following in NEXT.items():
            ids = tokens(here, add_special_tokens=False)["input_ids"]
            first = [tokens.convert_tokens_to_ids(END)] if following == END else starts(tokens, following)
            for source, target in pairwise(ids):
                head[target, source] = 2.0
            head[first, ids[-1]] = 2.0
        # A tie that greedy breaks, and sampling hardly notices.
        head[starts(tokens, "8")[0], starts(tokens, "{")[0]] -= 1e-3
        # A one-hot hidden state leaves the norm as sqrt(272) = 16.5 times itself: a logit of 33 against zeros.
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def starts(tokens, characters: str) -> list[int]:
    """The first token of each character."""
    return [tokens(character, add_special_tokens=False)["input_ids"][0] for character in characters]
