"""The engine against transformers, and its own bookkeeping."""

from __future__ import annotations

import pytest
import torch
from helpers import FAMILIES, VOCAB, adapted, causal_lm, policy, prompts

from pte_cli.errors import UsageError
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay

LENGTHS = [5, 9, 12, 3, 14]


def engine(model, *, evict="sliding", budget=None, frac=0.25, rows=4, **sampling):
    return RolloutEngine(model, policy(evict), Budget(budget, frac), Sampling(**sampling), batch=rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrapped", [True, False], ids=["zero adapter", "no adapter"])
def test_greedy_equals_transformers_generate(family, wrapped):
    model = adapted("none", family=family, zero=True) if wrapped else BoundedModel(causal_lm(family))
    ours = engine(model, evict="full", temperature=0, max_new_tokens=40, end_ids=(1,)).generate(prompts(LENGTHS))
    reference = causal_lm(family)
    for prompt, trace in zip(prompts(LENGTHS), ours, strict=True):
        expected = reference.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=1, pad_token_id=0
        )
        assert list(trace.completion) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encoder", ["pte", "none"])
def test_a_large_budget_equals_a_plain_forward(family, encoder):
    """Nothing evicted: rollout and replay are the untouched model (adapter at zero) on the whole sequence."""
    model = adapted(encoder, family=family, dtype=torch.float64, zero=True)
    plain = causal_lm(family, dtype=torch.float64)
    traces = engine(model, budget=200, max_new_tokens=50, end_ids=(1,)).generate(prompts(LENGTHS), seed=1)
    scored = replay(model, traces, policy("sliding"))
    for i, trace in enumerate(traces):
        ids = torch.tensor([trace.prompt + trace.completion])
        logprobs = plain(ids).logits.log_softmax(-1)[0, len(trace.prompt) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(trace.completion)[:, None])[:, 0]
        assert (trace.logprobs - expected).abs().max() < 1e-10
        assert (scored[i, : len(expected)] - expected).abs().max() < 1e-10


def test_a_suffix_at_its_original_positions_equals_a_dense_forward():
    """Public bug report B02, second check: keeping only some tokens is attention over exactly those."""
    model = BoundedModel(causal_lm(dtype=torch.float64, layers=1))
    [prompt] = prompts([12])
    cache = model.new_cache(policy("sliding"), 1, 12)
    with model.session(), torch.no_grad():
        positions = torch.arange(12)[None]
        cache.begin_write(positions)
        model.hidden(torch.tensor([prompt]), positions, cache, [None])
        cache.free(torch.tensor([0]), torch.arange(5)[None, None, None], torch.ones(1, 5, dtype=torch.bool))
        cache.begin_write(torch.tensor([[12]]))
        ours = model.hidden(torch.tensor([[7]]), torch.tensor([[12]]), cache, [None])[0, 0]
    kept = torch.tensor([[*prompt[5:], 7]])
    dense = causal_lm(dtype=torch.float64, layers=1).model(kept, position_ids=torch.arange(5, 13)[None])
    assert (ours - dense.last_hidden_state[0, -1]).abs().max() < 1e-10


@pytest.mark.parametrize("encoder", ["pte", "none"])
def test_a_row_alone_equals_the_row_in_a_batch(encoder):
    model = adapted(encoder, dtype=torch.float64)
    for temperature in (0.0, 1.0):
        settings = {"budget": 24, "max_new_tokens": 60, "end_ids": (1, 3), "temperature": temperature}
        together = engine(model, rows=3, **settings).generate(prompts(LENGTHS), seed=5)
        for rows in (1, 5):
            other = engine(model, rows=rows, **settings).generate(prompts(LENGTHS), seed=5)
            for a, b in zip(together, other, strict=True):
                assert a.completion == b.completion
                assert (a.logprobs - b.logprobs).abs().max() < 1e-10
                assert [e.step for e in a.evictions] == [e.step for e in b.evictions]
                assert all(torch.equal(x.positions, y.positions) for x, y in zip(a.evictions, b.evictions, strict=True))


def test_same_seed_same_tokens_other_seed_other_tokens():
    model = adapted("pte")
    first, again, other = (
        engine(model, budget=24, max_new_tokens=40).generate(prompts(LENGTHS), seed=seed) for seed in (1, 1, 2)
    )
    assert [t.completion for t in first] == [t.completion for t in again]
    assert all(torch.equal(a.logprobs, b.logprobs) for a, b in zip(first, again, strict=True))
    assert [t.completion for t in first] != [t.completion for t in other]


def test_positions_are_prompt_length_plus_step_and_the_budget_is_never_passed(monkeypatch):
    """Public bug report B02: positions count tokens generated, not rows kept; at no step are more than C stored."""
    fed, stored = [], []
    begin = BoundedCache.begin_write

    def watch(cache, position_ids):
        begin(cache, position_ids)
        fed.append(position_ids.clone())
        stored.append((cache.positions >= 0).sum(-1).max().item())
        visible = cache.visible(0).sum(-1).max().item()
        assert visible <= 16 or (position_ids < 0).any()

    monkeypatch.setattr(BoundedCache, "begin_write", watch)
    [trace] = engine(adapted("pte"), budget=16, max_new_tokens=64).generate(prompts([8]), seed=0)
    assert len(trace.completion) == 64
    assert fed[0].tolist() == [list(range(8))]
    assert [p.item() for p in fed[1:]] == list(range(8, 8 + 63))
    assert max(stored) == 16
    # W = 8, a quarter of it leaves: after 8 thinking tokens, then every 2, always the oldest two.
    assert [e.step for e in trace.evictions] == list(range(8, 63, 2))
    assert [e.positions.flatten().tolist() for e in trace.evictions[:2]] == [[8, 9], [10, 11]]


def test_the_replay_keeps_the_budget_too(monkeypatch):
    """Cached and new tokens of a round together are never more than C, and full rounds are exactly C."""
    counts = []
    begin = BoundedCache.begin_append

    def watch(cache, position_ids):
        counts.append(((cache.positions >= 0).sum(-1).flatten() + (position_ids >= 0).sum(-1)).tolist())
        begin(cache, position_ids)

    monkeypatch.setattr(BoundedCache, "begin_append", watch)
    model = adapted("pte")
    traces = engine(model, budget=24, max_new_tokens=50).generate(prompts(LENGTHS), seed=0)
    replay(model, traces, policy("sliding"))
    assert len(counts) == 1 + max(len(trace.evictions) for trace in traces)
    assert max(max(row) for row in counts) == 24
    assert counts[0] == [24] * len(LENGTHS)


def test_several_end_tokens_and_the_end_token_is_part_of_the_completion():
    """Public bug report B06: any listed end token ends a row, is kept and scored, and is not a truncation."""
    model = adapted("none", zero=True)
    bias = torch.zeros(VOCAB)

    def forced(_module, _inputs, logits):
        return logits + bias.to(logits.dtype)

    model.head.register_forward_hook(forced)
    bias[5] = 1e4
    [trace] = engine(model, max_new_tokens=16, end_ids=(0, 5)).generate(prompts([4]))
    assert trace.completion == (5,)
    assert trace.finish == "stop"
    assert trace.logprobs.tolist() == pytest.approx([0.0], abs=1e-6)
    [cut] = engine(model, max_new_tokens=3, end_ids=(0,)).generate(prompts([4]))
    assert cut.completion == (5, 5, 5)
    assert cut.finish == "length"


def test_ids_beyond_the_tokenizer_are_never_sampled():
    model = adapted("none")
    traces = engine(model, max_new_tokens=50, vocab=10).generate(prompts(LENGTHS), seed=2)
    assert max(max(t.completion) for t in traces) < 10


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_generated():
    with pytest.raises(UsageError, match=r"evict.budget = 16: a prompt of 14 tokens leaves 2"):
        engine(adapted("none"), budget=16, max_new_tokens=5).generate(prompts([5, 14]))


def test_the_model_attends_as_before_afterwards():
    model = adapted("none", zero=True)
    before = model.causal.config._attn_implementation
    engine(model, budget=24, max_new_tokens=5).generate(prompts(LENGTHS))
    assert model.causal.config._attn_implementation == before
    ids = torch.tensor(prompts([9]))
    assert torch.allclose(model.model(ids).logits, causal_lm()(ids).logits, atol=1e-5)
