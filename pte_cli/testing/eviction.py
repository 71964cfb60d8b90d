"""What an eviction policy must do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from unittest import SkipTest

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy, EvictionView, pinned_length
from pte_cli.rollout.trace import Trace
from pte_cli.testing.contract import Contract, require
from pte_cli.testing.models import WatchedModel, adapted
from pte_cli.testing.runs import BUDGET, NOISE, asked_again, largest_gap, require_same, rollout, scored


class Spy:
    """A policy in front of another one; remembers what that was shown and what it answered."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.seen: list[tuple[EvictionView, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def score(self, view: EvictionView) -> Tensor:
        # The cache goes on changing: keep what its keys and values are now.
        keys, values, positions = view.keys.clone(), view.values.clone(), view.positions.clone()
        scores = self.policy.score(view)
        self.seen.append((replace(view, positions=positions, _keys=lambda: keys, _values=lambda: values), scores))
        return scores


class EvictionContract(Contract):
    """Checks of an eviction policy, on small random models whose rows evict at different times."""

    kind: ClassVar[str] = "evict"

    def test_members(self) -> None:
        """granularity, bounded, and scores of the shape that the granularity says, none of them NaN."""
        policy = self.make()
        granularity = policy.granularity
        require(
            granularity in ("uniform", "layer", "head"),
            f"granularity is {granularity!r}; it must be 'uniform', 'layer' or 'head'",
        )
        require(isinstance(policy.bounded, bool), f"bounded is {policy.bounded!r}; it must be True or False")
        spy = Spy(self._bounded())
        self._rollout(spy)
        for _, scores in spy.seen:
            require(isinstance(scores, Tensor), f"score returned {type(scores).__name__}, not a tensor")
            require(not bool(scores.isnan().any()), "score returned NaN")

    def test_budget_never_exceeded(self) -> None:
        """At no step of rollout or replay are more tokens cached per layer and head than the budget."""
        policy = self._bounded()
        model = WatchedModel(adapted("none", dtype=torch.float64))
        traces = rollout(model, policy)
        model.replaying = True
        scored(model, traces, policy)
        require(max(model.cached) <= BUDGET, f"{max(model.cached)} tokens were cached under a budget of {BUDGET}")

    def test_pinned_never_evicted(self) -> None:
        """The prompt, or as much of it as the policy pins, never leaves."""
        policy = self._bounded()
        for trace in self._rollout(policy):
            first = pinned_length(policy, len(trace.prompt))
            for eviction in trace.evictions:
                lowest = int(eviction.positions.min())
                require(
                    lowest >= first,
                    f"the token at position {lowest} left; the first {first} tokens of its sequence are pinned",
                )

    def test_newest_kept(self) -> None:
        """The most recent token stays while others can go: what it will be attended for is not known yet."""
        policy = self._bounded()
        for trace in self._rollout(policy):
            for eviction in trace.evictions:
                newest = len(trace.prompt) + eviction.step - 1
                require(
                    not bool((eviction.positions == newest).any()),
                    f"the newest token, at position {newest}, left at once; give it the highest score",
                )

    def test_deterministic(self) -> None:
        """The same prompts and seed lose the same tokens again, and so does a policy built anew."""
        policy = self.make()
        first = self._rollout(policy)
        require_same(first, self._rollout(policy, noise=1), "asked a second time")
        require_same(first, self._rollout(self.make(), noise=2), "built anew")

    def test_row_alone_as_in_batch(self) -> None:
        """What a sequence loses does not depend on which others share its batch."""
        policy = self._bounded()
        require_same(self._rollout(policy, rows=1), self._rollout(policy, rows=4), "alone and in a batch")

    def test_padding_ignored(self) -> None:
        """What lies in empty slots (position -1) does not change which tokens leave."""
        policy = self._bounded()
        spy = Spy(policy)
        self._rollout(spy)
        for view, _ in spy.seen[:8]:
            first = torch.tensor([pinned_length(policy, int(n)) for n in view.prompt_lengths])
            empty = (view.positions >= first[None, :, None, None]) & (view.positions % 3 == 0)
            empty &= view.positions < view.positions.amax(-1, keepdim=True)
            orders = []
            for scale in (0.0, 1e3):
                holed = _with_junk(view, empty, scale)
                scores = policy.score(holed).double()
                orders.append(scores.masked_fill(empty, float("inf")).argsort(dim=-1, stable=True))
            require(
                torch.equal(*(order[..., : int((~empty).sum(-1).min())] for order in orders)),
                "tokens are ranked differently when only the contents of empty slots (position -1) differ",
            )

    def test_replay_evicts_the_same(self) -> None:
        """Asked again while a replay fills its cache in another order, the policy lets the same tokens go."""
        policy = self._bounded()
        traces = self._rollout(policy)
        for i, (trace, again) in enumerate(zip(traces, asked_again(traces), strict=True)):
            model = WatchedModel(self._model())
            scored(model, [again], policy)
            for eviction, evicted in zip(trace.evictions, model.evicted, strict=True):
                require(
                    torch.equal(
                        eviction.positions.sort(-1).values.long(), evicted.positions[:, 0, :].sort(-1).values.long()
                    ),
                    f"sequence {i}, after {eviction.step} tokens: the replay lets other tokens go than the rollout; "
                    "score must depend on the view's tokens only, not on their slots or on earlier calls",
                )

    def test_rollout_equals_replay(self) -> None:
        """Log-probabilities of rollout and replay agree, with recorded evictions and with the policy asked again.

        It is asked again in float64: in float32 rounding may decide between two scores that are nearly equal.
        """
        for family in ("qwen2", "llama"):
            for name, dtype in (("recorded", torch.float32), ("asked again", torch.float64)):
                policy, model = self.make(), adapted("none", family=family, dtype=dtype)
                traces = rollout(model, policy)
                gap = largest_gap(model, traces if name == "recorded" else asked_again(traces), policy)
                require(gap <= NOISE, f"{family}, evictions {name}: log-probabilities differ by {gap:.1e} ({dtype})")

    def _bounded(self) -> EvictionPolicy:
        policy = self.make()
        if not policy.bounded:
            raise SkipTest("bounded is False: nothing is ever evicted")
        return policy

    def _model(self) -> Any:
        return adapted("none", dtype=torch.float64)

    def _rollout(self, policy: EvictionPolicy, rows: int = 3, noise: int = 0) -> list[Trace]:
        """A rollout that no random number outside of it may change: `noise` seeds those."""
        model = self._model()
        torch.manual_seed(noise)
        traces = rollout(model, policy, rows=rows)
        require(not policy.bounded or any(t.evictions for t in traces), "nothing was ever evicted")
        return traces


def _with_junk(view: EvictionView, empty: Tensor, scale: float) -> EvictionView:
    """`view` with the slots `empty` free, and junk of this size in them."""
    generator = torch.Generator().manual_seed(0)

    def junk(kept: Tensor) -> Tensor:
        noise = scale * torch.randn(kept.shape, generator=generator, dtype=kept.dtype)
        return torch.where(empty.unsqueeze(-1), noise, kept)

    keys, values = junk(view.keys), junk(view.values)
    return replace(view, positions=view.positions.masked_fill(empty, -1), _keys=lambda: keys, _values=lambda: values)
