"""What the cases share: the tiny model and the four rows they were reported on, and runs with known rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizing import tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from pte_cli.config import load_config
from pte_cli.rollout.prepare import prepare
from pte_cli.tasks.examples import Scores
from pte_cli.train.loop import Trainer

D4 = [{"problem": f"{a}+{b}=", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (2, 2), (5, 3))]


def tiny_model(folder: Path, *, vocabulary: int = 512, ends: Sequence[int] = (), pad: str | None = None) -> Path:
    """Two layers of a Qwen2-style model with random weights, and a byte-level tokenizer.

    ends: end tokens of its generation settings; then the tokenizer's own end token is that of id 0, and `pad` its pad.
    """
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model, tokens = Qwen2ForCausalLM(config), tokenizer(None)
    tokens.bos_token = None
    if ends:
        model.generation_config.eos_token_id = list(ends)
        tokens.eos_token, tokens.pad_token = tokens.convert_ids_to_tokens(0), pad
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def rows_file(path: Path, rows: Sequence[object]) -> Path:
    """A JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines_of(run: Path) -> list[dict]:
    """metrics.jsonl of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def grpo(model: Path, data: Path, *sets: str) -> list[str]:
    """Arguments of `pte train` for GRPO steps on `data` that evict: windows of 12 of 40 thinking tokens."""
    settings = ("evict.budget=16", "sampling.max_new_tokens=40", "data.eval_fraction=0", "adapter.rank=4",
                "encoder.global_tokens=4", "grpo.prompts=2", "grpo.group_size=2", "grpo.steps=1", "train.warmup=0",
                "grpo.learning_rate=1e-3", "train.save_every=1", *sets)  # fmt: skip
    return ["train", "--model", str(model), "--data", str(data), "--objective", "grpo",
            *(part for one in settings for part in ("--set", one))]  # fmt: skip


def trainer(model: Path, data: Path, *sets: str, rewards: Callable[[int], float] = lambda i: i % 2) -> Trainer:
    """The trainer of such a run in this process. rewards: of the i-th completion."""
    arguments = grpo(model, data, *sets)
    config = load_config(
        env={},
        flags={"model.name": str(model), "data.source": str(data), "train.objective": "grpo"},
        sets=[arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"],
    )
    prepared = prepare(config)
    one = Trainer(config, prepared.model, prepared.policy, prepared.examples, lambda metrics: None)
    one.score = lambda questions, traces: scores([rewards(i) for i in range(len(traces))])
    return one


def scores(rewards: Sequence[float]) -> Scores:
    """Completions that are worth this and of which nobody knows whether they are right."""
    return Scores([float(reward) for reward in rewards], [None] * len(rewards))


def scripted(rows: Sequence[Sequence[int]]) -> Callable:
    """In place of `sample`: row i of the batch writes the tokens `rows[i]`, again and again; all start together."""
    calls = iter(range(10**6))

    def sample(logprobs, uniform, sampling):
        step = next(calls)
        tokens = [row[step % len(row)] for row in rows]
        return torch.tensor((tokens * len(logprobs))[: len(logprobs)])

    return sample


def gradients(one: Trainer) -> list[torch.Tensor]:
    """Of every trained tensor, zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in one.lora + one.encoder]
