"""`my-plugin`: a sum of outer products of evicted keys and values. Say here where your idea comes from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import Encoder, EncoderShape, EncoderSpec


class Options(BaseModel):
    """Options, set by `--set encoder.NAME=VALUE`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bound: float = Field(1.0, gt=0, description="largest absolute value of an entry of the state")


def build(options: Options, shape: EncoderShape) -> Encoder:
    from my_plugin.encoder import MyPlugin

    return MyPlugin(options, shape)


@hookimpl
def pte_encoders() -> list[EncoderSpec]:
    return [EncoderSpec("my-plugin", "sum of outer products of evicted keys and values", build, Options)]
