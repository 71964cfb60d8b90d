"""The contract suite: every built-in plugin passes, and each check catches the plugin that breaks just that."""

from __future__ import annotations

import itertools

import pytest
import torch
from catching import assert_caught, contract_of

from pte_cli.api import EvictionSpec, LauncherSpec, Problem, RewardSpec, TaskSpec
from pte_cli.errors import UsageError
from pte_cli.registry import load_registry
from pte_cli.testing import EncoderContract, EvictionContract, RewardContract, TaskContract, run_checks

REQUIRED = {"overlong": {"max_length": 8}}
"""Options without a default."""
ELSEWHERE = ("launcher", "reasoning-gym")
"""Launchers have no contract; the gym's reward passes on columns of its own, in its own test."""
BUILT_IN = [
    f
    for f in load_registry().found
    if f.distribution == "pte-cli" and f.kind.name not in ELSEWHERE and f.spec.name not in ELSEWHERE
]


@pytest.mark.parametrize("found", BUILT_IN, ids=lambda found: f"{found.kind.name}-{found.spec.name}")
def test_every_built_in_plugin_passes(found):
    outcomes = run_checks(found.qualified, kind=found.kind.name, options=REQUIRED.get(found.spec.name))
    assert len(outcomes) >= 3
    assert [outcome for outcome in outcomes if not outcome.passed] == []


# ---- the classes are used as an author would ----------------------------------------------------------------


class TestSlidingByName(EvictionContract):
    plugin = "pte-cli:sliding"


class TestEncoderWithOptions(EncoderContract):
    plugin = "pte"
    options = {"global_tokens": 5, "initial": "global", "normalize": "row", "read": "value", "rotated_keys": True}


class TestRewardBySpec(RewardContract):
    plugin = RewardSpec(
        "right",
        "",
        lambda _: lambda completions, answer, **_: [float(a in c) for a, c in zip(answer, completions)],  # noqa: B905
    )


class TestTask(TaskContract):
    plugin = "recall"
    options = {"entries": 4}


# ---- eviction policies, one thing wrong each ----------------------------------------------------------------


class Good:
    granularity = "uniform"
    bounded = True

    def score(self, view):
        return view.positions.double()


class WrongShape(Good):
    """Says one decision for all, but decides per layer."""

    def score(self, view):
        return view.keys.norm(dim=-1).mean(2, keepdim=True)


class WrongGranularity(Good):
    granularity = "token"


class Unbounded(Good):
    """Answers differently each time it is asked whether it is bounded."""

    def __init__(self):
        self.calls = itertools.count()

    @property
    def bounded(self):
        return next(self.calls) < 2


class NotANumber(Good):
    """NaN sorts behind everything."""

    def score(self, view):
        return torch.full_like(view.positions, float("nan"), dtype=torch.float64)


class ChangesItsPins(Good):
    """Pins more after its first eviction than it did before."""

    more = 0

    def score(self, view):
        self.more = 6
        return super().score(view)

    def pinned(self, prompt_length):
        return prompt_length + self.more


class NewestFirst(Good):
    def score(self, view):
        return -view.positions.double()


class Random(Good):
    def score(self, view):
        return torch.rand(view.positions.shape, dtype=torch.float64)


class Remembers(Good):
    """Changes its mind with every call."""

    def __init__(self):
        self.calls = itertools.count()

    def score(self, view):
        return (view.positions * (7 + next(self.calls)) % 11).double()


class LooksAtOtherRows(Good):
    def score(self, view):
        return (view.positions - view.positions.double().mean((1, 3), keepdim=True)).abs()


class ReadsEmptySlots(Good):
    granularity = "head"

    def score(self, view):
        return -torch.cosine_similarity(view.keys.mean(-2, keepdim=True), view.keys, dim=-1)


class Crashes(Good):
    def score(self, view):
        return view.attention_of_yesterday


BROKEN_POLICIES = [
    (WrongShape, "members", "granularity 'uniform' here means"),
    (WrongGranularity, "members", "granularity is 'token'"),
    (NotANumber, "members", "score returned NaN"),
    (Unbounded, "budget_never_exceeded", "tokens were cached under a budget of 24"),
    (ChangesItsPins, "pinned_never_evicted", "are pinned"),
    (NewestFirst, "newest_kept", "the newest token"),
    (Random, "deterministic", "asked a second time"),
    (Remembers, "deterministic", "asked a second time"),
    (LooksAtOtherRows, "row_alone_as_in_batch", "alone and in a batch"),
    (ReadsEmptySlots, "padding_ignored", "empty slots (position -1)"),
    (Remembers, "replay_evicts_the_same", "the replay lets other tokens go"),
    (Remembers, "rollout_equals_replay", "asked again: log-probabilities differ by"),
    (Crashes, "budget_never_exceeded", "attention_of_yesterday"),
]


def test_the_policy_that_the_broken_ones_are_made_of_is_right():
    outcomes = run_checks(EvictionSpec("good", "", lambda _: Good()))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert {check for _, check, _ in BROKEN_POLICIES} == {outcome.check for outcome in outcomes}


@pytest.mark.parametrize(("policy", "check", "reason"), BROKEN_POLICIES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_broken_policy_is_caught(policy, check, reason):
    contract = contract_of(EvictionContract, EvictionSpec("broken", "", lambda _: policy()))
    assert_caught(contract, check, reason)


# ---- rewards ------------------------------------------------------------------------------------------------

COUNTER = itertools.count()
BROKEN_REWARDS = {
    "one_value_per_completion": (lambda completions, **_: [1.0], "1 values for 5 completions"),
    "numbers_or_none": (lambda completions, **_: [torch.tensor(1.0) for _ in completions], "a Tensor; it must be"),
    "finite": (lambda completions, **_: [float("inf") for _ in completions], "it must be finite"),
    "deterministic": (lambda completions, **_: [next(COUNTER) for _ in completions], "a second time"),
    "order_does_not_matter": (lambda completions, **_: list(range(len(completions))), "the batch reversed"),
    "extra_columns_accepted": (
        lambda prompts, completions, completion_ids, answer, solution: [0.0] * len(completions),
        "accept **_ and ignore the rest",
    ),
}


@pytest.mark.parametrize("check", BROKEN_REWARDS)
def test_a_broken_reward_is_caught(check):
    function, reason = BROKEN_REWARDS[check]
    contract = contract_of(RewardContract, RewardSpec("broken", "", lambda _: function))
    assert_caught(contract, {"finite": "numbers_or_none"}.get(check, check), reason)
    assert set(contract.checks()) == set(BROKEN_REWARDS) - {"finite"}


# ---- tasks --------------------------------------------------------------------------------------------------


class Sums:
    words = ()
    shortest_prompt = 3

    def sample(self, rng):
        a = rng.randrange(1000)
        return Problem(f"{a} + 1", f"{a} and one", str(a + 1))

    def score(self, problem, completion):
        return float(completion.split()[-1:] == [problem.answer])


def broken_task(**members):
    return type("Broken", (Sums,), members)


BROKEN_TASKS = {
    "problems_come_from_the_random_stream_only": (
        broken_task(sample=lambda self, rng: Problem(str(next(COUNTER)), "", "1")),
        "the same random stream gives other problems",
    ),
    "worked_completions_are_right": (broken_task(score=lambda self, problem, completion: 0.5), "scores 0.5, not 1"),
    "words_and_shortest_prompt": (broken_task(shortest_prompt=9), "a prompt has 3 words; shortest_prompt is 9"),
}


@pytest.mark.parametrize("check", BROKEN_TASKS)
def test_a_broken_task_is_caught(check):
    task, reason = BROKEN_TASKS[check]
    contract = contract_of(TaskContract, TaskSpec("broken", "", lambda _: task()))
    assert_caught(contract, check, reason)
    assert set(contract.checks()) == set(BROKEN_TASKS)
    assert [o for o in run_checks(TaskSpec("good", "", lambda _: Sums())) if not o.passed] == []


# ---- the frame ----------------------------------------------------------------------------------------------


def test_a_kind_without_a_contract_and_a_wrong_kind():
    with pytest.raises(UsageError, match="'local' is a launcher; there are checks for: evict, encoder, reward, task"):
        run_checks("local")
    contract = contract_of(EvictionContract, LauncherSpec("x", "", lambda _: None))
    assert_caught(contract, "members", "plugin is no EvictionSpec")


def test_what_a_plugin_raises_is_a_failure_with_its_place():
    outcome = run_checks(EvictionSpec("crashes", "", lambda _: Crashes()))[0]
    assert not outcome.passed
    assert outcome.reason.startswith("AttributeError: 'EvictionView' object has no attribute")
    assert "test_contracts.py:" in outcome.reason
