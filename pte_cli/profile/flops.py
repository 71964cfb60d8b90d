"""`--report flops`: floating-point operations of a training step, by arithmetic (a multiply-add counts 2).

Counts matrix products, as torch's `FlopCounterMode` does, and agrees with it (within 0.5 % with checkpointing, which
spares the last product of a layer). Attention is given twice: `executed`, over
all slots that the engine multiplies with, and `needed`, over those alone that hold a token the query may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pte_cli.api import pinned_length
from pte_cli.config import RunConfig
from pte_cli.model.shapes import ModelShape, linears
from pte_cli.profile.arms import Arm, Question
from pte_cli.profile.encoder_flops import EncoderFlops, encoder_flops
from pte_cli.profile.sizes import full_shape
from pte_cli.profile.step import Setting
from pte_cli.rollout.prepare import build_policy
from pte_cli.rollout.trace import eviction_schedule
from pte_cli.train.logprobs import CHUNK

FROM_EMBEDDING = ("q_proj", "k_proj", "v_proj")
"""Their input is the frozen embedding in the first layer, so that no gradient is computed for it there."""


@dataclass(frozen=True)
class PerToken:
    """FLOPs of one token's pass through all layers. first: those that layer 0's q, k and v have in a backward pass
    of other models, and not in ours."""

    weights: int
    adapter: int
    core: int
    first_weights: int
    first_adapter: int

    @classmethod
    def of(cls, shape: ModelShape, config: RunConfig, cored: bool) -> PerToken:
        sizes, rank, targets = linears(shape), config.adapter.rank, config.adapter.target_modules
        first = [name for name in FROM_EMBEDDING if name in targets]
        return cls(
            weights=2 * shape.layers * sum(wide * high for wide, high, _ in sizes.values()),
            adapter=2 * shape.layers * sum(rank * (sizes[name][0] + sizes[name][1]) for name in targets),
            core=2 * shape.layers * len(targets) * rank * rank if cored else 0,
            first_weights=2 * sum(sizes[name][0] * sizes[name][1] for name in FROM_EMBEDDING),
            first_adapter=2 * sum(rank * sizes[name][0] for name in first),
        )


@dataclass(frozen=True)
class Lengths:
    """What a row of the step goes through: tokens fed in each round, and where the cache stands."""

    prompt: int
    rounds: tuple[int, ...]
    capacity: int
    visible: int
    """Tokens seen by each query, itself included, summed over all queries."""

    @property
    def fed(self) -> int:
        return sum(self.rounds)

    @classmethod
    def of(cls, setting: Setting, pinned: int) -> Lengths:
        prompt, bound = setting.prompt, setting.budget
        schedule = eviction_schedule(prompt, setting.length, bound.tokens, bound.frac, pinned)
        fed = prompt + setting.length - 1
        edges = [0, *(prompt + eviction.step for eviction in schedule), fed]
        rounds = tuple(stop - start for start, stop in pairwise(edges))
        visible = cached = 0
        for tokens, gone in zip(rounds, [0, *(eviction.count for eviction in schedule)], strict=True):
            cached -= gone
            visible += tokens * cached + tokens * (tokens + 1) // 2
            cached += tokens
        return cls(prompt, rounds, bound.tokens or prompt + setting.length, visible)


def flops_report(question: Question, model: Mapping[str, Any]) -> dict[str, Any]:
    """The report as JSON: `steps`, one for each arm, budget and length. model: the model's config.json."""
    steps = [
        {**curve.head(step), **step_flops(curve.arm, model, step)}
        for curve in question.curves()
        for step in curve.steps
    ]
    return {**question.head("flops"), "steps": steps}


def step_flops(arm: Arm, model: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """FLOPs of one step of all its rows: `phases` by part, their `total`, and attention `executed` and `needed`."""
    shape = full_shape(model)
    lengths = Lengths.of(setting, pinned_length(build_policy(arm.config), setting.prompt))
    encoder = encoder_flops(arm.config, shape, setting.rows, _count(lengths), exact=setting.gradient == "exact")
    token = PerToken.of(shape, arm.config, cored=encoder.cored)
    rollout = rollout_flops(shape, token, lengths, encoder, setting)
    replay = replay_flops(shape, token, lengths, encoder, setting, arm.config.train.gradient_checkpointing)
    attention = _attention(shape) * setting.rows
    executed = rollout["attention"] + replay["attention"]
    return {
        "phases": {"rollout": dict(rollout), "replay": dict(replay)},
        "total": rollout.total() + replay.total(),
        "attention": {
            "executed": executed,
            # Forward in the rollout; forward and twice that backward in the replay.
            "needed": attention * lengths.visible * 4,
            "needed_in_replay": attention * lengths.visible * 3,
        },
    }


def rollout_flops(
    shape: ModelShape, token: PerToken, lengths: Lengths, encoder: EncoderFlops, setting: Setting
) -> Counter[str]:
    """Prefill of the prompts together, then one token per row and step over all slots."""
    rows, steps = setting.rows, lengths.fed - lengths.prompt
    evictions = len(lengths.rounds) - 1
    pairs = lengths.prompt**2 + steps * lengths.capacity
    return Counter(
        {
            "weights": token.weights * rows * lengths.fed,
            "adapter": (token.adapter + token.core) * rows * lengths.fed,
            "attention": _attention(shape) * rows * pairs,
            "head": 2 * shape.hidden * shape.vocab * rows * (steps + 1),
            "encoder": 2 * encoder.init + encoder.absorb * evictions + encoder.cores * (evictions + 3),
        }
    )


def replay_flops(
    shape: ModelShape,
    token: PerToken,
    lengths: Lengths,
    encoder: EncoderFlops,
    setting: Setting,
    checkpointing: bool,
) -> Counter[str]:
    """Every round forward and backward; twice forward with checkpointing, and before it without gradients where the
    gradient is exact."""
    rows, rounds = setting.rows, len(lengths.rounds)
    evictions = rounds - 1
    capacity = lengths.capacity if evictions else 0
    pairs = sum(tokens * (capacity + tokens) for tokens in lengths.rounds)
    last = lengths.rounds[-1]
    forward = Counter(
        weights=token.weights * lengths.fed,
        adapter=(token.adapter + token.core) * lengths.fed,
        attention=_attention(shape) * pairs,
    )
    backward = Counter(
        weights=(token.weights - token.first_weights) * lengths.fed,
        adapter=(2 * (token.adapter + token.core) - token.first_adapter) * lengths.fed,
        attention=2 * _attention(shape) * pairs,
    )
    passes = Counter({name: forward[name] * (2 if checkpointing else 1) + backward[name] for name in forward})
    if setting.gradient == "exact":
        # All rounds but the last, once more without gradients.
        passes["weights"] += token.weights * (lengths.fed - last)
        passes["adapter"] += (token.adapter + token.core) * (lengths.fed - last)
        passes["attention"] += _attention(shape) * (pairs - last * (capacity + last))
    scored = [lengths.rounds[0] - lengths.prompt + 1, *lengths.rounds[1:]]
    # Logits of more tokens than one chunk are made again for their gradients.
    head = sum(tokens * (3 if rows * tokens > CHUNK else 2) for tokens in scored)
    found = Counter({name: count * rows for name, count in passes.items()})
    found["head"] = 2 * shape.hidden * shape.vocab * rows * head
    found["encoder"] = (
        encoder.init
        + encoder.init_linked
        + (encoder.absorb + encoder.absorb_linked) * evictions
        + encoder.cores_linked * rounds
        + (encoder.cores * evictions if setting.gradient == "exact" else 0)
    )
    return found


def _attention(shape: ModelShape) -> int:
    """FLOPs of one query and one key in all layers: a product of length D each for score and value, all heads."""
    return 4 * shape.layers * shape.heads * shape.head_dim


def _count(lengths: Lengths) -> int:
    """Tokens that leave at one eviction; 1 where nothing does."""
    return lengths.rounds[1] if len(lengths.rounds) > 2 else 1
