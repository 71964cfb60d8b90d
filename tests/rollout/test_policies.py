"""What the built-in policies keep, against slow and obvious references; and the gap for each with each encoder."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import NOISE, adapted, policy, prompts
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.evict import choose_slots
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import worked_trace
from pte_cli.train.replay import replay

SCORES = ["attention", "window", "attention-value", "key-norm", "key-diversity"]
GRANULARITIES = ["uniform", "layer", "head"]
POLICIES = {
    "sliding": policy("sliding"),
    "sink": policy("sink", n_sink=8),
    "sink, prompt evictable": policy("sink", evict_prompt=True),
} | {f"{s} by {g}": policy("importance", score=s, granularity=g, window=5) for s in SCORES for g in GRANULARITIES}


def rollout(model, rule, *, budget=24, frac=0.25, lengths=(5, 9, 12, 3, 14, 7), tokens=60, ends=(1, 3)):
    sampling = Sampling(max_new_tokens=tokens, end_ids=ends)
    return RolloutEngine(model, rule, Budget(budget, frac), sampling, batch=3).generate(prompts(lengths), seed=3)


def largest_gap(model, rule, traces):
    scored = replay(model, traces, rule)
    return max((scored[i, : len(t.completion)] - t.logprobs).abs().max().item() for i, t in enumerate(traces))


@pytest.mark.parametrize("encoder", ["none", "pte", "ttt"])
@pytest.mark.parametrize("rule", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, NOISE), (torch.float64, 1e-10)], ids=["32", "64"])
def test_gap(rule, encoder, dtype, bound):
    model = adapted(encoder, dtype=dtype)
    traces = rollout(model, rule, ends=(1,))
    steps = [tuple(e.step for e in trace.evictions) for trace in traces]
    assert len(set(steps)) >= 4
    assert max(len(s) for s in steps) >= 6
    assert largest_gap(model, rule, traces) <= bound


@pytest.mark.parametrize("options", [{"objective": "ridge"}, {"momentum": 0.9}, {"objective": "nll"}], ids=str)
@pytest.mark.parametrize("name", ["sliding", "sink, prompt evictable", "attention by uniform"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, NOISE), (torch.float64, 1e-10)], ids=["32", "64"])
def test_gap_of_ttt_objectives(name, options, dtype, bound):
    model = adapted("ttt", options=options, dtype=dtype)
    assert largest_gap(model, POLICIES[name], rollout(model, POLICIES[name])) <= bound


@pytest.mark.parametrize("name", [name for name in POLICIES if "key" not in name])
def test_worked_examples_evict_what_a_rollout_would(name):
    """The policy asked again a round at a time, on what the attention function then saw, chooses the same."""
    rule, model = POLICIES[name], adapted("pte", dtype=torch.float64)
    traces = rollout(model, rule)
    pinned = getattr(rule, "pinned", None)
    worked = [worked_trace(t.prompt, t.completion, 24, 0.25, pinned(len(t.prompt)) if pinned else None) for t in traces]
    assert [[e.step for e in w.evictions] for w in worked] == [[e.step for e in t.evictions] for t in traces]
    assert (replay(model, worked, rule) - replay(model, traces, rule)).abs().max().item() <= 1e-10


@pytest.mark.parametrize("limit", [0, 400])
def test_attention_is_seen_through_the_fused_kernel_too(monkeypatch, limit):
    """The same tokens leave when the weights have to be written out in parts."""
    model, rule = adapted("none", dtype=torch.float64), policy("importance", granularity="head", score="window")
    before = rollout(model, rule)
    monkeypatch.setattr("pte_cli.rollout.attention.EXPLICIT", limit)
    worked = [worked_trace(t.prompt, t.completion, 24, 0.25) for t in before]
    assert (replay(model, worked, rule) - replay(model, before, rule)).abs().max().item() <= 1e-10


# ---- H2O, written with lists and loops ----------------------------------------------------------------------------


class Slow(Cache):
    """Per layer and KV head: a list of [position, key, value, attention received]."""

    def __init__(self, layers, heads):
        super().__init__(layers=[])
        self.tokens = [[[] for _ in range(heads)] for _ in range(layers)]
        self.positions = []

    def update(self, key_states, value_states, layer_idx, *_, **__):
        for head, tokens in enumerate(self.tokens[layer_idx]):
            for t, position in enumerate(self.positions):
                tokens.append([position, key_states[0, head, t], value_states[0, head, t], 0.0])
        return key_states, value_states

    def get_seq_length(self, layer_idx=0):
        return 0


def slow_attention(module, query, _key, _value, _mask, *, scaling, slow_cache, **_):
    out = torch.zeros_like(query)
    heads = slow_cache.tokens[module.layer_idx]
    group = query.shape[1] // len(heads)
    for h in range(query.shape[1]):
        tokens = heads[h // group]
        for t, position in enumerate(slow_cache.positions):
            seen = [token for token in tokens if token[0] <= position]
            exponentials = [math.exp(float(query[0, h, t] @ token[1]) * scaling) for token in seen]
            for token, exponential in zip(seen, exponentials, strict=True):
                weight = exponential / sum(exponentials)
                out[0, h, t] += weight * token[2]
                token[3] += weight
    return out.transpose(1, 2), None


AttentionInterface.register("slow_reference", slow_attention)


def leavers(tokens_of_heads, prompt, count, recent, grace):
    """Positions of the `count` thinking tokens with the least attention, summed over heads that decide together."""
    sums = {}
    for tokens in tokens_of_heads:
        for position, _, _, mass in tokens:
            sums[position] = sums.get(position, 0.0) + mass
    thinking = sorted(p for p in sums if p >= prompt)
    newest = thinking[-1]
    guarded = thinking[len(thinking) - int(recent * len(thinking)) :] if recent else []
    free = [p for p in thinking if p not in guarded and newest - p >= grace]
    return set(sorted(free, key=lambda p: (sums[p], p))[:count])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_accumulated_attention_is_h2o(granularity):
    """The slow reference agrees on every token that leaves, over 200 steps."""
    budget, prompt, steps = 24, 6, 200
    rule = policy("importance", granularity=granularity, recent=0.5, grace=4)
    model = adapted("none", dtype=torch.float64, layers=2)
    [trace] = rollout(model, rule, lengths=(prompt,), tokens=steps, ends=())
    assert len(trace.completion) == steps
    assert len(trace.evictions) > 40

    causal, fed, cache = model.causal, trace.fed, Slow(2, 2)
    before = causal.config._attn_implementation
    causal.config._attn_implementation = "slow_reference"
    recorded, evictions = iter(trace.evictions), 0

    def feed(start, stop):
        cache.positions = list(range(start, stop))
        causal.model(
            input_ids=torch.tensor([fed[start:stop]]),
            position_ids=torch.tensor([cache.positions]),
            cache=cache,
            use_cache=True,
            slow_cache=cache,
        )

    try:
        with torch.no_grad():
            feed(0, prompt)
            for position in range(prompt, len(fed)):
                if len(cache.tokens[0][0]) == budget:
                    eviction = next(recorded)
                    evictions += 1
                    deciders = {
                        "uniform": [[(layer, head) for layer in range(2) for head in range(2)]],
                        "layer": [[(layer, head) for head in range(2)] for layer in range(2)],
                        "head": [[(layer, head)] for layer in range(2) for head in range(2)],
                    }[granularity]
                    for group, ours in zip(deciders, eviction.positions.flatten(0, 1), strict=True):
                        gone = leavers([cache.tokens[a][b] for a, b in group], prompt, eviction.count, 0.5, 4)
                        assert gone == set(ours.tolist())
                        for a, b in group:
                            cache.tokens[a][b] = [t for t in cache.tokens[a][b] if t[0] not in gone]
                feed(position, position + 1)
    finally:
        causal.config._attn_implementation = before
    assert evictions == len(trace.evictions)


# ---- sets that are known without running anything --------------------------------------------------------------------


def kept_after(trace, evictions):
    """Positions in the cache right after the first `evictions` evictions."""
    gone = {p for e in trace.evictions[:evictions] for p in e.positions.flatten().tolist()}
    return set(range(len(trace.prompt) + trace.evictions[evictions - 1].step)) - gone


@pytest.mark.parametrize("frac", [0.01, 0.25])
def test_sink_with_an_evictable_prompt_keeps_streaming_llms_set(frac):
    """The first 4 tokens of the sequence and the newest, nothing else, at every eviction."""
    model, budget = adapted("none"), 24
    for trace in rollout(model, policy("sink", n_sink=4, evict_prompt=True), frac=frac, lengths=(9, 24, 3)):
        count = max(1, int(frac * (budget - 4)))
        assert {e.count for e in trace.evictions} <= {count}
        for i, eviction in enumerate(trace.evictions, 1):
            length = len(trace.prompt) + eviction.step
            newest = budget - count - 4
            assert kept_after(trace, i) == set(range(4)) | set(range(length - newest, length))


def test_sliding_keeps_the_last_tokens_in_blocks():
    """After eviction i the prompt and the newest W - n thinking tokens are left; n = floor(frac * W)."""
    for trace in rollout(adapted("none"), policy("sliding"), lengths=(9, 4)):
        prompt, window = len(trace.prompt), 24 - len(trace.prompt)
        count = int(0.25 * window)
        for i, eviction in enumerate(trace.evictions, 1):
            assert eviction.step == window + (i - 1) * count
            length = prompt + eviction.step
            assert kept_after(trace, i) == set(range(prompt)) | set(range(length - window + count, length))


def test_sink_with_a_pinned_prompt_is_sliding():
    model = adapted("pte")
    for ours, theirs in zip(
        rollout(model, policy("sink")), rollout(model, policy("sliding")), strict=True
    ):  # the shortest prompt has 3 tokens: its fourth is a sink too
        same = len(ours.prompt) >= 4
        assert (ours.completion == theirs.completion) is same or not ours.evictions


def test_pinned_and_empty_slots_never_leave_even_where_all_scores_are_infinite():
    positions = torch.tensor([[[[7, -1, 0, 3, 1, 5]]]])
    scores = torch.tensor([[[[9.0, -9.0, -9.0, 1.0, -9.0, 1.0]]]])
    chosen = choose_slots(scores, positions, torch.tensor([2]), 3)
    assert positions.gather(-1, chosen).flatten().tolist() == [3, 5, 7]
    endless = torch.full_like(scores, float("inf"))
    chosen = choose_slots(endless, positions, torch.tensor([2]), 3)
    assert positions.gather(-1, chosen).flatten().tolist() == [3, 5, 7]


def test_scores_by_hand():
    """Two tokens may leave, keys and values small enough to do in one's head."""
    from pte_cli.api import EvictionView

    view = EvictionView(
        positions=torch.tensor([[[[0, 1, 2, -1]]]]),
        prompt_lengths=torch.tensor([1]),
        pinned=torch.tensor([1]),
        _keys=lambda: torch.tensor([[[[[9.0, 9], [3, 4], [0, 2], [7, 7]]]]]),
        _values=lambda: torch.tensor([[[[[9.0, 9], [1, -2], [0, 5], [7, 7]]]]]),
        _attention=lambda: torch.tensor([[[[5.0, 0.5, 0.25, 0.0]]]]),
        _recent=lambda: torch.tensor([[[[[0.5, 0.25, 0.25, 0], [0.5, 0.5, 0.0, 0]]]]]),
    )

    def score(name):
        rule = policy("importance", score=name, granularity="head", recent=0, grace=0, mix=0.5)
        return rule.score(view).flatten()[1:3].tolist()

    assert score("attention") == [0.5, 0.25]
    assert score("window") == [0.75, 0.25]
    assert score("attention-value") == [1.5, 1.25]
    assert score("key-norm") == [-5.0, -2.0]
    # Both have the cosine 0.8 with the only other token: equal redundancy, 1/2 each.
    assert score("key-diversity") == pytest.approx([0.5 * 0.375 - 0.25, 0.5 * 0.125 - 0.25])


def test_the_young_are_protected():
    from pte_cli.api import EvictionView

    view = EvictionView(
        positions=torch.tensor([[[[9, 2, 3, 4, 8, 7, 0, 1]]]]),
        prompt_lengths=torch.tensor([2]),
        pinned=torch.tensor([2]),
        _keys=lambda: torch.ones(1, 1, 1, 8, 4),
        _values=lambda: torch.ones(1, 1, 1, 8, 4),
    )
    for options, young in {
        (0.5, 0): {9, 8, 7},
        (0.0, 2): {9, 8},
        (0.4, 3): {9, 8, 7},
        (0.9, 0): {9, 8, 7, 4, 3},
    }.items():
        rule = policy("importance", score="key-norm", recent=options[0], grace=options[1])
        infinite = rule.score(view).isinf().flatten()
        assert set(view.positions.flatten()[infinite].tolist()) == young


def test_a_policy_must_declare_what_it_reads():
    class Undeclared:
        granularity, bounded = "head", True

        def score(self, view):
            return view.attention

    with pytest.raises(ValueError, match=r"view.attention; it must declare needs = frozenset\(\{'attention'\}\)"):
        rollout(adapted("none"), Undeclared())
