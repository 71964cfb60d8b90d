"""Small models and prompts that several tests share: those of the contract suite, with the tests' defaults."""

from __future__ import annotations

from pte_cli.registry import build, load_registry
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.testing.models import FAMILIES, VOCAB, causal_lm, prompts
from pte_cli.testing.models import adapted as adapted_model
from pte_cli.testing.runs import NOISE

__all__ = ["FAMILIES", "NOISE", "VOCAB", "adapted", "causal_lm", "policy", "prompts"]


def policy(name: str, **options):
    """An eviction policy by name, through the registry."""
    return build(load_registry().eviction(name), options)


def adapted(encoder: str = "pte", *, rank: int = 8, options=None, **more) -> BoundedModel:
    """An adapted random model; `pte` has as many global tokens as its rank unless told otherwise."""
    if encoder == "pte":
        options = {"global_tokens": rank, **(options or {})}
    return adapted_model(encoder, encoder_options=options, rank=rank, **more)
