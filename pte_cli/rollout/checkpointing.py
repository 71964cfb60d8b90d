"""Gradient checkpointing under a bounded cache: each decoder layer's activations are made again when needed.

The models' own switch works in training mode only and drops the cache there, so a replay would see no past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pte_cli.model.adapter import cores_set
from pte_cli.rollout.cache import BoundedCache


@contextmanager
def layers_checkpointed(
    layers: Sequence[nn.Module], cache: BoundedCache, peft: nn.Module | None, cores: Sequence[Tensor | None]
) -> Iterator[None]:
    """Inside the block, a pass through `layers` keeps only what goes into each of them.

    The second computation happens during the backward pass, after the block: it gets the same cores back, and the
    cache takes no notice of it.
    """

    @contextmanager
    def again() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(cache.unrecorded())
            if peft is not None:
                stack.enter_context(cores_set(peft, cores))
            yield

    for layer in layers:
        # On the instance, in front of the class's own method; deleted again below.
        layer.forward = partial(_forward, layer.forward, again)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(forward: Callable[..., Any], again: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,  # a session has no dropout
        context_fn=lambda: (nullcontext(), again()),
        **kwargs,
    )
