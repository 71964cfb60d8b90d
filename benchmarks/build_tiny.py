"""Rebuild the built-in model: `python benchmarks/build_tiny.py --out pte_cli/assets/tiny` (about 20 minutes, one core).

A Qwen2 of 0.8 M parameters learns the built-in recall task from worked examples with the full cache. One thread and
fixed seeds: the same machine gives the same weights. The pairs are written down after 300 steps; looking them up again
appears after about 1,100, all at once, or with other random numbers much later (see docs/measurements.md).
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from pte_plugins.tasks.recall import ANSWER, ASK, LABELS, LISTS, THINK, VALUES, RecallTask, write
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from pte_cli.api import Problem
from pte_cli.tasks.streams import held_out

PAD, END = "<pad>", "<eos>"
RESERVED = ("+1", "+2", "+3", "-1", "-2", "-3")
"""Words no task uses yet, so that one about running balances can come without another embedding."""
LARGEST = 12
ANSWER_WEIGHT = 4.0
PEAK_LR = 1e-3
SCHEDULE = 3000
"""Steps of the cosine, of which only the first part is run."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the task, words separated by blanks."""
    words = (PAD, END, LISTS, ASK, THINK, ANSWER, *VALUES, *RESERVED, *LABELS)
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=PAD))
    inner.pre_tokenizer = WhitespaceSplit()
    inner.decoder = decoders.WordPiece(cleanup=False)  # joins with blanks
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, eos_token=END)


def make_model(vocab: int) -> Qwen2ForCausalLM:
    """4 layers of width 128, two KV heads of size 32."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocab,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def sample(rng: random.Random, entries: int) -> Problem:
    """A problem of three queries. The draws of reserved words belong to the random stream of the shipped weights."""
    labels = rng.sample(LABELS, entries)
    for _ in range(entries):
        rng.choice(RESERVED)
    rng.choice(VALUES)
    values = [rng.choice(VALUES) for _ in labels]
    return write(labels, values, rng.sample(range(entries), min(3, entries)))


def encode(tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> tuple[torch.Tensor, int, int]:
    """Token ids `[B, T]` of equally long problems, and the lengths of prompt and thinking."""
    ids = tokenizer([f"{p.prompt} {p.thinking} {p.answer} {END}" for p in problems])["input_ids"]
    return torch.tensor(ids), len(problems[0].prompt.split()), len(problems[0].thinking.split())


@torch.no_grad()
def teacher_forced(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: int, count: int = 256
) -> float:
    """Share of held-out problems whose whole completion is the likeliest one, token by token."""
    ids, prompt, _ = encode(tokenizer, held_out(RecallTask(entries), "recall", count, seed=0))
    likeliest = model(input_ids=ids).logits[:, prompt - 1 : -1].argmax(-1)
    return (likeliest == ids[:, prompt:]).all(1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.01)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")

    best, start = 0.0, time.time()
    for step in range(args.steps + 1):
        largest = min(LARGEST, 3 + step // 40)
        entries = rng.randint(2, largest) if rng.random() < 0.5 else largest
        ids, prompt, thinking = encode(tokenizer, [sample(rng, entries) for _ in range(args.batch)])
        cosine = 0.5 * (1 + math.cos(math.pi * step / SCHEDULE))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * (min(1, step / 100) * (0.05 + 0.95 * cosine))
        logits = model(input_ids=ids).logits[:, prompt - 1 : -1]
        targets = ids[:, prompt:]
        weights = torch.ones(targets.shape[1])
        weights[thinking:] = ANSWER_WEIGHT
        losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
        loss = (losses.view(targets.shape) * weights).sum() / (weights.sum() * len(ids))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            right = {size: teacher_forced(model, tokenizer, size) for size in (4, 8, LARGEST)}
            shown = "  ".join(f"{size} entries {share:.3f}" for size, share in right.items())
            print(f"step {step:5d}  loss {loss.item():.3f}  {shown}  {time.time() - start:.0f} s", flush=True)
            if right[LARGEST] > best:
                best = right[LARGEST]
                model.save_pretrained(args.out)
                tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
