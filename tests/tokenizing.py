"""Small tokenizers made in memory: one token per byte, plus the special tokens of chat templates."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

START, END, PAD = "<s>", "</s>", "<pad>"
SPECIAL = [START, END, PAD, "<|im_start|>", "<|im_end|>"]


def tokenizer(template: str | None, *, adds_start: bool = False, adds_end: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with `template`; `adds_start`, `adds_end`: as Llama's and T5's put them around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    pieces = f"{START if adds_start else ''} $A {END if adds_end else ''}".split()
    ids = [(token, core.token_to_id(token)) for token in (START, END)]
    core.post_processor = processors.TemplateProcessing(single=" ".join(pieces), special_tokens=ids)
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=START, eos_token=END, pad_token=PAD)
    made.chat_template = template
    return made
