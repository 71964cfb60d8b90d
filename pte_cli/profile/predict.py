"""Peak memory of a training step, predicted by running its code on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pte_cli.api import pinned_length
from pte_cli.budget import eviction_count
from pte_cli.config import RunConfig
from pte_cli.profile.fake import FakeModel, faked, skeleton
from pte_cli.profile.live import Peak
from pte_cli.profile.step import PHASES, Setting, generate, step_peaks
from pte_cli.rollout.engine import RolloutEngine
from pte_cli.rollout.prepare import build_policy
from pte_cli.rollout.trace import Trace

ROUNDS = 2
"""The shortest step that stands for longer ones: its last round begins with what an eviction left."""
SAME = 1e-4
"""Share of the peak by which growth per round may change and still count as constant."""
MOST_ROUNDS = 400


@dataclass(frozen=True)
class Prediction:
    """peaks: by phase. rounds: of the longest step that was run; whole: whether that was the step asked for."""

    peaks: dict[str, Peak]
    rounds: int
    whole: bool

    @property
    def peak(self) -> Peak:
        """The largest of all phases."""
        return max(self.peaks.values(), key=lambda peak: peak.total)


class Predictor:
    """Predicts steps of one arm on the model with the config.json `model`; remembers what it has run."""

    def __init__(self, config: RunConfig, model: Mapping[str, Any]) -> None:
        self.config, self.model = config, model
        self.policy = build_policy(config)
        self._run: dict[Setting, dict[str, Peak]] = {}

    def predict(self, setting: Setting) -> Prediction:
        """A step whose cache is bounded is run to the end, or until each further round adds the same few bytes (to
        traces and results): three steps that differ by one round each must differ by the same, and the rest is
        their straight line. One with the full cache is a single round, run at its real length."""
        if setting.budget.tokens is None:
            return Prediction(self.run(setting), 1, whole=True)
        first, count = self._between(setting)
        needed = 1 + max(0, -(-(setting.length - 1 - first) // count))
        rounds = ROUNDS
        while rounds + 2 < needed and rounds <= MOST_ROUNDS:
            lengths = [first + more * count + 1 for more in (rounds - 1, rounds, rounds + 1)]
            steps = [self.run(replace(setting, length=length)) for length in lengths]
            if all(_straight([step[phase].total for step in steps]) for phase in PHASES):
                further = (setting.length - lengths[-1]) / count
                peaks = {phase: _extended(steps[-2][phase], steps[-1][phase], further) for phase in PHASES}
                return Prediction(peaks, rounds + 2, whole=False)
            rounds *= 2
        return Prediction(self.run(setting), needed, whole=True)

    def shortest(self, setting: Setting) -> Setting:
        """The step of `ROUNDS` rounds, or `setting` itself where that has no more."""
        if setting.budget.tokens is None:
            return setting
        first, count = self._between(setting)
        return replace(setting, length=min(setting.length, first + (ROUNDS - 1) * count + 1))

    def run(self, setting: Setting) -> dict[str, Peak]:
        """The peaks of exactly this step."""
        if setting not in self._run:
            # Nothing is evicted from a full cache: its decode steps are all alike, the first few show them all.
            unbounded = setting.budget.tokens is None
            stop = min(setting.length, 4) if unbounded else setting.length
            bare = skeleton(self.config, self.model)
            with faked(bare, stop) as live:
                model = FakeModel(bare, live, gradient_checkpointing=self.config.train.gradient_checkpointing)
                rollout = _first_tokens if unbounded else generate
                self._run[setting] = step_peaks(model, self.policy, setting, trained_before=True, rollout=rollout)
        return self._run[setting]

    def _between(self, setting: Setting) -> tuple[int, int]:
        """Tokens fed before the first eviction, and between two."""
        bound = setting.budget
        pinned = pinned_length(self.policy, setting.prompt)
        return bound.tokens - setting.prompt, eviction_count(bound.tokens, setting.prompt, bound.frac, pinned)


def _first_tokens(engine: RolloutEngine, prompts: list[list[int]]) -> Sequence[Trace]:
    """Rows that ended early, as traces of full length."""
    traces = engine.generate(prompts)
    return [replace(trace, completion=(0,) * engine.sampling.max_new_tokens, logprobs=None) for trace in traces]


def _straight(totals: Sequence[int]) -> bool:
    first, second, third = totals
    return abs((third - second) - (second - first)) <= SAME * third


def _extended(before: Peak, last: Peak, further: float) -> Peak:
    """`last` after `further` more rounds, each of which adds what the last one added to `before`."""
    names = before.parts.keys() | last.parts.keys()
    parts = {
        name: last.parts.get(name, 0) + round((last.parts.get(name, 0) - before.parts.get(name, 0)) * further)
        for name in names
    }
    return Peak(last.total + round((last.total - before.total) * further), parts)


def largest(size_at: Callable[[int], int], limit: int, start: int, most: int) -> int | None:
    """The largest whole number up to `most` at which `size_at`, which grows, is within `limit`; None if 1 is not.

    Looks where a straight line between what it knows crosses the limit, so that few questions are needed; to within
    1 %.
    """
    low, high = (start, start) if size_at(start) <= limit else (1, start)
    if low == 1 and size_at(1) > limit:
        return None
    while low == high:
        if low >= most:
            return most
        high = min(4 * low, most)
        if size_at(high) <= limit:
            low = high
    while high - low > max(1, low // 100):
        share = (limit - size_at(low)) / (size_at(high) - size_at(low))
        guess = min(max(low + int(share * (high - low)), low + 1), high - 1)
        if size_at(guess) > limit:
            high = guess
            continue
        low = guess
        # Where growth is a straight line, a little more is already too much.
        after = min(guess + max(1, guess // 100), high)
        if after < high:
            low, high = (after, high) if size_at(after) <= limit else (low, after)
    return low
