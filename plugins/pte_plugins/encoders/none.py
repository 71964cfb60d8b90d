"""`none`: what is evicted is forgotten; the adapter is plain LoRA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pte_cli import hookimpl
from pte_cli.api import Encoder, EncoderShape, EncoderSpec, NoOptions

if TYPE_CHECKING:
    from pte_cli.api import Evicted, State


def build(_options: NoOptions, _shape: EncoderShape) -> Encoder:
    from torch import nn

    class NoEncoder(nn.Module):
        """No state, no core."""

        rotated_keys = True

        def init(self, batch: int) -> State:
            return {}

        def absorb(self, state: State, evicted: Evicted) -> State:
            return state

        def core(self, state: State, layer: int) -> None:
            return None

    return NoEncoder()


@hookimpl
def pte_encoders() -> list[EncoderSpec]:
    return [EncoderSpec("none", "forget what is evicted: plain LoRA", build)]
