"""The model as training uses it, telling the counter of live bytes what belongs to which part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from peft import PeftModel
from torch import Tensor

from pte_cli.api import Evicted, EvictionPolicy, State
from pte_cli.profile.live import LiveBytes
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache

WEIGHTS, ADAPTER, GRADIENTS, OPTIMIZER = "weights", "adapter", "gradients", "optimizer"
CACHE, STATE = "KV cache", "encoder state"


class ProfiledModel(BoundedModel):
    """A `BoundedModel` whose storages are counted by part in `live`. Computes what a `BoundedModel` computes."""

    def __init__(self, model: PeftModel, live: LiveBytes, *, gradient_checkpointing: bool = False) -> None:
        super().__init__(model, gradient_checkpointing=gradient_checkpointing)
        self.live = live
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        live.watch(*self.trained, part=ADAPTER)
        live.watch(*model.parameters(), *model.buffers(), part=WEIGHTS)

    @contextmanager
    def gradients_told(self) -> Iterator[None]:
        """Inside the block, gradients of parameters are counted as such as soon as they are there."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda told: self.live.relabel(told.grad, GRADIENTS))
            for parameter in self.trained
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def new_cache(self, policy: EvictionPolicy, batch: int, capacity: int, *, observe: bool = True) -> BoundedCache:
        with self.live.label(CACHE):
            return super().new_cache(policy, batch, capacity, observe=observe)

    def init_state(self, batch: int) -> State:
        with self.live.label(STATE):
            return super().init_state(batch)

    def cores(self, state: State) -> list[Tensor | None]:
        with self.live.label(STATE):
            return super().cores(state)

    def absorb(self, state: State, evicted: Evicted) -> State:
        with self.live.label(STATE):
            return super().absorb(state, evicted)
