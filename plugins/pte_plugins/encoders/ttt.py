"""`ttt`: test-time training: fast weights that learn, at each eviction, what is leaving. The paper's baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import Encoder, EncoderShape, EncoderSpec


class TttOptions(BaseModel):
    """Options of the `ttt` encoder (`--set encoder.options.NAME=VALUE`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: Literal["reconstruction", "ridge", "nll"] = Field(
        "reconstruction",
        description="what S learns: values from keys by gradient steps, the same in closed form, or the evicted tokens",
    )
    steps: int = Field(1, ge=1, description="`reconstruction`: gradient steps per eviction")
    momentum: float = Field(0.0, ge=0, lt=1, description="`reconstruction`, `nll`: of the updates, over evictions too")
    ridge: float = Field(1.0, gt=0, description="`ridge`: weight of staying near the S before")
    rotated_keys: bool = Field(False, description="learn keys with their RoPE rotation instead of without")


def needs(options: TttOptions) -> frozenset[str]:
    return frozenset({"nll_gradient"}) if options.objective == "nll" else frozenset()


def build(options: TttOptions, shape: EncoderShape) -> Encoder:
    from pte_plugins.encoders.ttt_encoder import TttEncoder

    return TttEncoder(options, needs(options), shape)


@hookimpl
def pte_encoders() -> list[EncoderSpec]:
    return [EncoderSpec("ttt", "test-time training: fast weights learn what is evicted", build, TttOptions, needs)]
