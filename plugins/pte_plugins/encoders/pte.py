"""`pte`: Progressive Thought Encoding (arXiv 2602.16839): evicted keys and values become a small matrix S."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pte_cli import hookimpl
from pte_cli.api import Encoder, EncoderShape, EncoderSpec


class PteOptions(BaseModel):
    """Options of the `pte` encoder (`--set encoder.options.NAME=VALUE`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    global_tokens: int = Field(32, ge=1, description="g: learnable global tokens, the rows of S")
    normalize: Literal["frobenius", "row", "none"] = Field(
        "frobenius",
        description="norm of S after each eviction: whole matrix to sqrt(r), each row to 1, or as is",
    )
    initial: Literal["identity", "global"] = Field(
        "identity", description="before the first eviction: plain LoRA, or the state of the global tokens"
    )
    read: Literal["key", "value"] = Field(
        "key",
        description="side of S that meets the low-rank input: its rows (g, keys) or its columns (values)",
    )
    rotated_keys: bool = Field(False, description="encode keys with their RoPE rotation instead of without")


def build(options: PteOptions, shape: EncoderShape) -> Encoder:
    from pte_plugins.encoders.pte_encoder import PteEncoder

    return PteEncoder(options, shape)


@hookimpl
def pte_encoders() -> list[EncoderSpec]:
    return [EncoderSpec("pte", "Progressive Thought Encoding (arXiv 2602.16839)", build, PteOptions)]
