"""What an encoder is: it turns evicted keys and values into a small state, and the state into a core.

Every adapted linear layer of layer l computes `W x + scale * B (I + M) A x` (LoRA's own names: A is `[r, in]`,
B is `[out, r]`), where M is `core(state, l)`, one `[r, r]` matrix per row of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]
"""The state of B sequences: tensors of shape `[L, B, ...]`. Empty for an encoder that keeps nothing."""


def _no_needs(_options: Any) -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True)
class EncoderShape:
    """Sizes an encoder is built for: L layers, hidden size, Hkv KV heads of size D, LoRA rank r."""

    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    rank: int


@dataclass(frozen=True)
class Evicted:
    """What leaves the cache at one eviction, for b rows; n is the largest count among them.

    keys, values: `[L, b, Hkv, n, D]` in the model's dtype. Keys are un-rotated unless the encoder asks otherwise.
    positions: int64 `[1 or L, b, 1 or Hkv, n]`.
    mask: bool `[b, n]`; False marks padding, whose keys and values must not count.
    nll_gradient: for encoders with `"nll_gradient"` in `needs`: the gradient, with respect to the state before this
        eviction, of each row's mean negative log-likelihood of the evicted tokens, given the tokens that stay and each
        other. Shaped as the state; a constant, through which nothing is differentiated.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    mask: Tensor
    nll_gradient: State | None = None


class Encoder(Protocol):
    """A `torch.nn.Module` with these methods. Its parameters are trained and saved with the adapter.

    rotated_keys: False (the default choice) asks for keys with their RoPE rotation taken back.

    Optional: needs, a frozenset that may hold "nll_gradient" (see `Evicted`); it costs a pass forward and backward over
    the evicted tokens at each eviction, and asks for a policy that drops the same tokens in every layer and head.
    """

    rotated_keys: bool

    def init(self, batch: int) -> State:
        """The state before anything was evicted, `[L, batch, ...]`; may depend on parameters."""
        ...

    def absorb(self, state: State, evicted: Evicted) -> State:
        """The state after `evicted`. Pure: no tensor of `state` is changed; row i depends on row i only."""
        ...

    def core(self, state: State, layer: int) -> Tensor | None:
        """M of layer `layer`, `[B, r, r]`, or None for M = 0 (plain LoRA)."""
        ...

    def parameters(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class EncoderSpec:
    """How a plugin announces an encoder. `build(options, shape)` makes it; import torch in there.

    needs(options): what the encoder's `needs` will be, so that settings that clash are refused before a model loads.
    """

    name: str
    summary: str
    build: Callable[[Any, EncoderShape], Encoder]
    options: type[BaseModel] = NoOptions
    needs: Callable[[Any], frozenset[str]] = _no_needs
    api: int = 1
