"""Whatever the settings and seed: the budget is never exceeded, pinned tokens never leave, and the replay agrees."""

from __future__ import annotations

from functools import cache

import pytest
from helpers import adapted, policy, prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import float64

from pte_cli.api import pinned_length
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.testing.models import WatchedModel
from pte_cli.train.replay import replay

TOKENS = 40
IMPORTANCE = st.fixed_dictionaries(
    {
        "score": st.sampled_from(["attention", "window", "attention-value", "key-norm", "key-diversity"]),
        "granularity": st.sampled_from(["uniform", "layer", "head"]),
        "recent": st.sampled_from([0.0, 0.25, 0.5]),
        "grace": st.integers(0, 4),
    }
)
POLICIES = st.one_of(
    st.just(("full", {})),
    st.just(("sliding", {})),
    st.tuples(st.just("sink"), st.fixed_dictionaries({"n_sink": st.integers(1, 6), "evict_prompt": st.booleans()})),
    st.tuples(st.just("importance"), IMPORTANCE),
)
ENCODERS = st.one_of(
    st.just(("none", {})),
    st.tuples(
        st.just("pte"),
        st.fixed_dictionaries(
            {
                "initial": st.sampled_from(["identity", "global"]),
                "normalize": st.sampled_from(["frobenius", "row"]),
                "read": st.sampled_from(["key", "value"]),
            }
        ),
    ),
    st.tuples(st.just("ttt"), st.fixed_dictionaries({"objective": st.sampled_from(["reconstruction", "ridge"])})),
)
RUNS = st.fixed_dictionaries(
    {
        "rule": POLICIES,
        "encoder": ENCODERS,
        "lengths": st.lists(st.integers(1, 16), min_size=1, max_size=5),
        "room": st.integers(4, 24),
        "frac": st.one_of(st.sampled_from([0.01, 0.25, 1.0]), st.floats(0.01, 1.0)),
        "rows": st.integers(1, 4),
        "seed": st.integers(0, 2**31),
    }
)


@cache
def model_of(encoder, options):
    return adapted(encoder, options=dict(options), dtype=float64, layers=2)


def check(run):
    """One rollout and its replay."""
    name, options = run["rule"]
    rule, encoder = policy(name, **options), run["encoder"]
    model = WatchedModel(model_of(encoder[0], tuple(sorted(encoder[1].items()))))
    # Where the prompt may leave, the sinks have to fit, too.
    budget = max(*run["lengths"], options.get("n_sink", 0)) + run["room"]
    sampling = Sampling(max_new_tokens=TOKENS, end_ids=(1, 3))
    asked = prompts(run["lengths"], seed=run["seed"] % 1000)
    traces = RolloutEngine(model, rule, Budget(budget, run["frac"]), sampling, batch=run["rows"]).generate(
        asked, seed=run["seed"]
    )
    bound = budget if rule.bounded else max(run["lengths"]) + TOKENS
    assert max(model.cached) <= bound
    model.cached.clear()
    model.replaying = True
    scored = replay(model, traces, rule)
    assert max(model.cached) <= bound
    for i, trace in enumerate(traces):
        assert (scored[i, : len(trace.completion)] - trace.logprobs).abs().max() <= 1e-9
        if not rule.bounded:
            assert trace.evictions == ()
            continue
        pinned = pinned_length(rule, len(trace.prompt))
        gone = None
        for eviction in trace.evictions:
            # n = max(1, floor(frac * W)), as docs/method.md has it.
            assert eviction.count == max(1, int(run["frac"] * (budget - pinned)))
            left = eviction.positions.flatten(0, -2).tolist()
            gone = gone or [set() for _ in left]
            for before, now in zip(gone, left, strict=True):
                assert len(set(now)) == eviction.count
                assert pinned <= min(now)
                assert max(now) < len(trace.prompt) + eviction.step
                assert not before & set(now)
                before |= set(now)


QUIET = {"derandomize": True, "deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=15, **QUIET)
@given(RUNS)
def test_a_few_runs(run):
    check(run)


@pytest.mark.slow
@settings(max_examples=600, **QUIET)
@given(RUNS)
def test_many_runs(run):
    check(run)
