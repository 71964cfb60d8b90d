"""FLOPs of an encoder's own steps, counted by torch without storage, whatever plugin it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from pte_cli.api import Evicted
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.model.shapes import ModelShape
from pte_cli.profile.sizes import bare_encoder
from pte_cli.rollout.bounded_model import NLL_GRADIENT


@dataclass(frozen=True)
class EncoderFlops:
    """For all rows: the first state, one eviction's absorb, the cores of all layers once; `linked` ones are forward
    and backward. cored: whether layers have a core at all."""

    cored: bool = False
    init: int = 0
    absorb: int = 0
    cores: int = 0
    init_linked: int = 0
    absorb_linked: int = 0
    cores_linked: int = 0


def encoder_flops(config: RunConfig, shape: ModelShape, rows: int, count: int, *, exact: bool) -> EncoderFlops:
    """Of the encoder `config` names with `rows` rows that lose `count` tokens at an eviction; exact: gradients reach
    those tokens' keys and values.

    UsageError for one that learns from the likelihood of what is evicted: that takes passes of the whole model.
    """
    encoder = bare_encoder(config, shape)
    if NLL_GRADIENT in getattr(encoder, "needs", frozenset()):
        raise UsageError(
            f"encoder.name = {config.encoder.name!r}: with these options it reads evicted tokens again, which "
            "--report flops does not count; choose another objective"
        )
    before = {name: tensor.detach().requires_grad_() for name, tensor in encoder.init(rows).items()}
    if not before:
        return EncoderFlops()
    evicted = _evicted(shape, rows, count, exact)
    steps: dict[str, Callable[[], list[torch.Tensor]]] = {
        "init": lambda: list(encoder.init(rows).values()),
        "absorb": lambda: list(encoder.absorb(before, evicted).values()),
        "cores": lambda: [encoder.core(before, layer) for layer in range(shape.layers)],
    }
    found = {name: _counted(step, backward=False) for name, step in steps.items()}
    linked = {f"{name}_linked": _counted(step, backward=True) for name, step in steps.items()}
    return EncoderFlops(True, **found, **linked)


def _counted(step: Callable[[], list[torch.Tensor]], *, backward: bool) -> int:
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        outputs = [tensor for tensor in step() if tensor.requires_grad]
        if backward and outputs:
            torch.autograd.backward(outputs, [torch.ones_like(tensor) for tensor in outputs])
    return counter.get_total_flops()


def _evicted(shape: ModelShape, rows: int, count: int, exact: bool) -> Evicted:
    with torch.device("meta"):
        size = (shape.layers, rows, shape.kv_heads, count, shape.head_dim)
        keys, values = (torch.zeros(size, requires_grad=exact) for _ in range(2))
        positions = torch.zeros(1, rows, 1, count, dtype=torch.int64)
        return Evicted(keys, values, positions, torch.ones(rows, count, dtype=torch.bool))
