"""Public bug reports of caches, end tokens, prompts and logits, each as a small input with the right outcome."""

from __future__ import annotations

import json

import pytest
import torch
from cases.casework import D4, rows_file, scripted, tiny_model, trainer
from helpers import NOISE, policy
from running import pte
from tokenizing import START, tokenizer
from transformers import AutoModelForCausalLM

from pte_cli.checks import check_config
from pte_cli.config import load_config
from pte_cli.model.source import describe_model
from pte_cli.profile.arms import arms_of
from pte_cli.profile.predict import Predictor
from pte_cli.profile.step import Setting
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.logprobs import token_log_probs


def test_b02_positions_are_true_steps_after_evictions(tiny, monkeypatch):
    """kvpress#16, keys_values#140: the next position is taken from the number of rows kept."""
    model, fed = BoundedModel(AutoModelForCausalLM.from_pretrained(tiny)), []
    hidden = BoundedModel.hidden

    def watched(self, ids, position_ids, *more):
        fed.append(position_ids.flatten().tolist())
        return hidden(self, ids, position_ids, *more)

    monkeypatch.setattr(BoundedModel, "hidden", watched)
    engine = RolloutEngine(model, policy("sliding"), Budget(16), Sampling(max_new_tokens=64))
    [trace] = engine.generate([list(range(8))])
    assert fed == [list(range(8)), *([position] for position in range(8, 8 + 63))]
    assert len(trace.evictions) == (63 - 8) // 2 + 1


def test_b02_a_suffix_at_its_original_positions_is_a_dense_forward_over_it(tiny):
    """Nothing but the suffix was ever cached: 20 tokens from position 40 on, fed in parts of 12, 1, 1, ..."""
    model = BoundedModel(AutoModelForCausalLM.from_pretrained(tiny))
    ids, positions = torch.arange(100, 120)[None], torch.arange(40, 60)[None]
    cache, parts = model.new_cache(policy("sliding"), 1, 20), []
    with model.session(), torch.no_grad():
        for part in (slice(0, 12), *(slice(i, i + 1) for i in range(12, 20))):
            cache.begin_write(positions[:, part])
            parts.append(model.hidden(ids[:, part], positions[:, part], cache, [None] * 2))
    with torch.no_grad():
        dense = AutoModelForCausalLM.from_pretrained(tiny).model(ids, position_ids=positions).last_hidden_state
    assert (torch.cat(parts, 1) - dense).abs().max() < 1e-4


@pytest.mark.parametrize("pad", ["!", None], ids=["pad is the end token", "no pad token"])
def test_b06_every_end_token_ends_and_is_learnt(pad, tmp_path, monkeypatch):
    """trl#7039, trl#4970: one of several end tokens is honoured, and masks are guessed from token values."""
    folder = tiny_model(tmp_path / "model", ends=[0, 5], pad=pad)
    one = trainer(folder, rows_file(tmp_path / "d4.jsonl", D4), "sampling.max_new_tokens=16")
    assert one.sampling.end_ids == (0, 5)
    monkeypatch.setattr("pte_cli.rollout.sampling.sample", scripted([(7, 8, 5)]))
    rollout = one.groups.rollout(1)
    assert [trace.completion for trace in rollout.traces] == [(7, 8, 5)] * 4
    assert rollout.metrics["completions/clipped_ratio"] == 0
    # Every token of the batch weighs 1 in 12, the end tokens too, and nothing else does.
    assert rollout.weights.tolist() == pytest.approx([1 / 12] * 4)
    assert rollout.old.shape == (4, 3)
    assert one.groups.update(rollout)["gap/max"] < NOISE
    assert one.groups.passes.logprobs(rollout.traces)[:, 2].lt(0).all()


def test_b13_a_prompt_that_the_budget_cannot_hold_is_found_first(tiny, tmp_path, monkeypatch):
    """verl#1015: a prompt that is too long ends the run in the middle."""
    monkeypatch.setattr("pte_cli.eval.run.train_and_evaluate", lambda *_: pytest.fail("trained"))
    rows_file(tmp_path / "d5.jsonl", [*D4, {"problem": "7" * 200, "answer": "3"}])
    command = ["train", "--model", str(tiny), "--data", "d5.jsonl", "--objective", "grpo", "--budget", "64",
               "--evict", "sliding", "--frac", "0.25", "--out", "run"]  # fmt: skip
    done = pte(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "evict.budget = 64: too long for it with 4 tokens for thinking: d5.jsonl:5 (200 tokens); use at least 204"
        in (done.stderr)
    )
    assert not (tmp_path / "run").exists()
    dropped = pte(*command, "--set", "data.too_long=drop", "--show-prompt", cwd=tmp_path)
    assert dropped.returncode == 0
    assert "the longest has 4 tokens; 1 rows dropped as too long" in dropped.stderr


def test_b15_one_start_token_in_training_and_evaluation(tiny, tmp_path, monkeypatch):
    """open-r1#462: the chat template writes the start token and the tokenizer adds it again."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny).save_pretrained(folder)
    tokens = tokenizer(template, adds_start=True)
    tokens.save_pretrained(folder)
    rows_file(tmp_path / "own.jsonl", D4)
    shown = pte("train", "--model", "model", "--data", "own.jsonl", "--objective", "grpo", "--show-prompt", "--json",
                cwd=tmp_path)  # fmt: skip
    document = json.loads(shown.stdout)
    ids = [tokens.bos_token_id, *b"1+2="]
    alphabet = {tokens.decode([i]): i for i in range(256)}
    assert document["text"] == f"{START}1+2="
    assert document["ids"] == [ids[0], *(alphabet[letter] for letter in "1+2=")]

    asked = []
    stream = RolloutEngine.stream
    monkeypatch.setattr(
        RolloutEngine, "stream", lambda self, prompts, *a, **k: asked.extend(prompts) or stream(self, prompts, *a, **k)
    )
    done = pte("eval", "--model", "model", "--bench", "own.jsonl", "--limit", "1", "--max-new-tokens", "4",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [list(prompt) for prompt in asked] == [document["ids"]]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The tiny model with a vocabulary of 150,000."""
    return tiny_model(tmp_path_factory.mktemp("wide"), vocabulary=150_000)


THREE_COPIES = 3 * 1024 * 150_000 * 4
"""Of float32 logits of 1,024 tokens: logits, their log-probabilities and the gradient."""


def test_b16_logits_of_a_large_vocabulary_do_not_grow_with_the_length(wide):
    """trl#3678: logits of batch x length x 150,000 are built at once."""
    sets = [f"model.name={wide}", "adapter.rank=4", "encoder.global_tokens=4"]
    config = check_config(load_config(env={}, sets=sets), asks_task=False)
    predictor = Predictor(arms_of(config)[0].config, describe_model(config.model))
    short, long = (predictor.run(Setting(256, 8, n, Budget(None)))["replay"].parts["logits"] for n in (8, 16))
    assert 0 < long <= 1.01 * short
    assert long <= THREE_COPIES
    head = AutoModelForCausalLM.from_pretrained(wide).lm_head
    hidden, wanted = torch.randn(20, 64), torch.randint(0, 150_000, (20,))
    with torch.no_grad():
        whole = head(hidden).log_softmax(-1).gather(1, wanted[:, None])[:, 0]
        ours = token_log_probs(hidden, head, wanted, 1.0, None, chunk=8)
    assert (ours - whole).abs().max() < 1e-6


@pytest.mark.slow
def test_b16_as_it_was_reported(wide, tmp_path):
    done = pte("profile", str(wide), "--report", "memory", "--rows", "8", "--length", "256", "--length", "512",
               "--no-measure", "--rank", "4", "--set", "encoder.global_tokens=4", "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    logits = {
        (step["arm"], step["length"]): step["predicted"]["phases"]["replay"]["parts"]["logits"]
        for step in json.loads(done.stdout)["steps"]
    }
    for arm in ("full LoRA", "LoRA_c", "PTE"):
        assert 0 < logits[arm, 512] <= 1.01 * logits[arm, 256], arm
    assert max(logits.values()) <= THREE_COPIES
