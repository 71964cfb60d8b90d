"""SmolLM2-135M-Instruct, a real model: what random weights can't show. Minutes; run with `-m slow`.

The weights are those of the fixture `smollm2`.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers import policy
from peft import PeftModel

from pte_cli.config import ModelConfig, load_config
from pte_cli.model.load import load_model
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import prepare
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Eviction, Trace, eviction_schedule
from pte_cli.tasks.examples import Scores
from pte_cli.train.loop import Trainer
from pte_cli.train.replay import replay

pytestmark = pytest.mark.slow

BUDGET, LENGTH = 128, 512
QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a storm.",
    "What is the difference between a planet and a star?",
    "Give me a recipe for pancakes and explain each step.",
)


@pytest.fixture(scope="session")
def loaded(smollm2):
    return load_model(ModelConfig(name=str(smollm2), device="cpu"))


def chat(tokenizer, question):
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def perplexity(logprobs):
    return math.exp(-logprobs.mean().item())


def test_the_unpacked_weights_speak_english(loaded):
    """Wrongly permuted queries and keys would give perplexities in the thousands."""
    model, tokenizer = loaded
    text = "The capital of France is Paris, and the capital of Italy is Rome."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert math.exp(model(ids, labels=ids).loss.item()) < 8


def test_greedy_text_is_transformers_text(loaded):
    model, tokenizer = loaded
    prompts = [chat(tokenizer, question) for question in QUESTIONS]
    sampling = Sampling(temperature=0.0, max_new_tokens=80, end_ids=(tokenizer.eos_token_id,), vocab=len(tokenizer))
    engine = RolloutEngine(BoundedModel(model), policy("sliding"), Budget(512, 0.25), sampling)
    for prompt, trace in zip(prompts, engine.generate(prompts), strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=80, do_sample=False)[0, len(prompt) :]
        assert tokenizer.decode(trace.completion) == tokenizer.decode(expected)
        assert trace.evictions == ()


@pytest.fixture(scope="session")
def written(loaded):
    """512 tokens for each question at temperature 0.7, under the full cache and under 128 cached tokens."""
    model, tokenizer = loaded
    prompts = [chat(tokenizer, question) for question in QUESTIONS]
    assert max(map(len, prompts)) < 50
    sampling = Sampling(temperature=0.7, max_new_tokens=LENGTH, vocab=len(tokenizer))  # nothing ends a text early
    return {
        name: RolloutEngine(BoundedModel(model), policy(name), Budget(BUDGET, 0.25), sampling).generate(prompts, seed=1)
        for name in ("full", "sliding")
    }


def test_text_stays_fluent_far_past_the_budget(loaded, written, record_property):
    """What is written late, judged by the model with its full cache: the perplexity of tokens 256 to 511.

    Measured: 2.82 where 128 tokens are cached, 2.90 where all are.
    """
    bounded = BoundedModel(loaded[0])
    judged = {}
    for name, traces in written.items():
        whole = [Trace(trace.prompt, trace.completion) for trace in traces]
        judged[name] = perplexity(replay(bounded, whole, policy("full"))[:, LENGTH // 2 :])
        record_property(f"perplexity of text written with {name}", judged[name])
    assert min(len(trace.evictions) for trace in written["sliding"]) >= 20
    assert judged["sliding"] / judged["full"] < 1.3


def test_a_pinned_prompt_is_what_keeps_it_fluent(loaded, written, record_property):
    """The same text scored under 128 cached tokens: near the full cache, unless the prompt leaves like all else.

    Measured: perplexity 2.90 with the full cache, 3.69 with the prompt pinned, 13.35 when the oldest tokens leave,
    the prompt's first.
    """
    bounded = BoundedModel(loaded[0])

    def scored(name, evictions, budget=BUDGET):
        parts = [Trace(t.prompt, t.completion, budget=budget, evictions=tuple(evictions(t))) for t in written["full"]]
        result = perplexity(replay(bounded, parts, policy("sliding"))[:, LENGTH // 2 :])
        record_property(f"perplexity of the full cache's text scored with {name}", result)
        return result

    def pinned(trace):
        return eviction_schedule(len(trace.prompt), len(trace.completion), BUDGET, 0.25)

    def unpinned(trace):
        gone = 0
        for eviction in pinned(trace):
            positions = torch.arange(gone, gone + eviction.count, dtype=torch.int32)
            gone += eviction.count
            yield Eviction(eviction.step, eviction.count, positions.view(1, 1, -1))

    full = scored("the full cache", lambda trace: (), None)
    kept, lost = scored("128, prompt pinned", pinned), scored("128, prompt evicted", unpinned)
    assert kept / full < 1.5
    assert lost / full > 3


def test_a_step_of_each_kind_is_finite_and_its_adapter_gives_the_same_text_again(smollm2, tmp_path, record_property):
    """Tied embeddings included: SmolLM2's head is its embedding."""
    sets = [
        f"model.name={smollm2}",
        "model.device=cpu",
        "train.objective=sft+grpo",
        "train.gradient_checkpointing=true",
        "sft.steps=1",
        "grpo.steps=1",
        "train.warmup=0",
        "sft.batch=4",
        "grpo.prompts=2",
        "grpo.group_size=2",
        "evict.budget=64",
        "adapter.rank=8",
        "sampling.max_new_tokens=48",
    ]
    config = load_config(env={}, sets=sets)
    prepared = prepare(config)
    metrics = []
    trainer = Trainer(config, prepared.model, prepared.policy, prepared.examples, metrics.append)
    # Random rewards: what a model that has not learned the task is given need not differ within a group.
    trainer.score = lambda questions, traces: Scores([0.0, 1.0] * (len(traces) // 2), [None] * len(traces))
    assert list(trainer.run()) == [1, 2]
    assert [line["phase"] for line in metrics] == ["sft", "grpo"]
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in metrics)
    for name in ("gap/mean", "gap/max", "evictions"):
        record_property(name, metrics[1][name])
    assert metrics[1]["gap/max"] <= 1e-3
    assert metrics[1]["gap/mean"] <= 1e-5
    assert metrics[1]["evictions"] > 2
    prepared.model.model.save_pretrained(tmp_path)
    base, tokenizer = load_model(config.model)
    again = BoundedModel(PeftModel.from_pretrained(base, tmp_path))
    prompt = chat(tokenizer, QUESTIONS[0])
    sampling = Sampling(temperature=0.0, max_new_tokens=60, vocab=len(tokenizer))
    texts, scores = [], []
    for model in (prepared.model, again):
        [trace] = RolloutEngine(model, prepared.policy, Budget(64, 0.25), sampling).generate([prompt])
        texts.append(tokenizer.decode(trace.completion))
        scores.append(replay(model, [trace], prepared.policy))
        assert len(trace.evictions) > 5
    assert texts[0] == texts[1]
    assert torch.equal(scores[0], scores[1])
