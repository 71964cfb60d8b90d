"""A training step without its numbers: the code of rollout, replay and update on fake tensors, nothing allocated.

Fake tensors have shapes and dtypes but no values. Where the host asks the device for one, `HostReads` answers: no
row has ended before the length wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from pte_cli.config import RunConfig
from pte_cli.model.adapter import add_adapter
from pte_cli.profile.live import LiveBytes
from pte_cli.profile.profiled import ProfiledModel
from pte_cli.profile.sizes import full_config
from pte_cli.rollout.cache import BoundedCache


class HostReads(TorchFunctionMode):
    """Answers the host's questions about values of fake tensors: every number is `number`, every yes-or-no a no.

    The engine asks for the length at which each row ended, and for the tokens. With `number` the length wanted, rows
    end there. Raw bytes, which a tape writes to a file, are none at all.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED and isinstance(args[0], FakeTensor):
            return ASKED[func](args[0], self.number)
        return func(*args, **(kwargs or {}))


def _listed(tensor: Tensor, number: int) -> Any:
    return np.broadcast_to(np.int64(number), tensor.shape).tolist()


def _array(tensor: Tensor, number: int) -> np.ndarray:
    if tensor.dtype == torch.uint8:
        return np.empty(0, np.uint8)
    return np.broadcast_to(np.int64(number), tensor.shape)


ASKED = {
    Tensor.tolist: _listed,
    Tensor.numpy: _array,
    Tensor.item: lambda tensor, number: number,
    Tensor.__int__: lambda tensor, number: number,
    Tensor.__float__: lambda tensor, number: float(number),
    Tensor.__bool__: lambda tensor, number: False,
}


class FakeModel(ProfiledModel):
    """Runs on fake tensors. What one decode step does to memory depends on shapes alone, so of steps with the same
    shapes the layers are run twice and what the second of them needed is counted for all that follow."""

    def __init__(self, model: PeftModel, live: LiveBytes, *, gradient_checkpointing: bool = False) -> None:
        super().__init__(model, live, gradient_checkpointing=gradient_checkpointing)
        self._steps: dict[Any, list[Counter[str]]] = {}

    def hidden(self, ids: Tensor, position_ids: Tensor, cache: BoundedCache, cores: Sequence[Tensor | None]) -> Tensor:
        if ids.shape[1] > 1 or torch.is_grad_enabled():
            return super().hidden(ids, position_ids, cache, cores)
        seen = self._steps.setdefault((*ids.shape, *cache.keys.shape), [])
        if len(seen) == 2:
            self.live.rise(seen[-1])
            return torch.empty(*ids.shape, self.head.weight.shape[1], dtype=self.dtype)
        with self.live.span() as rise:
            result = super().hidden(ids, position_ids, cache, cores)
        seen.append(rise)
        return result


def skeleton(config: RunConfig, model: Mapping[str, Any]) -> PeftModel:
    """The model with the config.json `model` and the adapter of `config`, on the meta device: sizes without storage."""
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(full_config(model), dtype=getattr(torch, config.model.dtype))
        base.requires_grad_(False)
        return add_adapter(
            base.eval(),
            encoder=config.encoder.name,
            encoder_options=config.encoder.options,
            rank=config.adapter.rank,
            alpha=config.adapter.alpha,
            target_modules=config.adapter.target_modules,
        )


@contextmanager
def faked(model: PeftModel, stop: int) -> Iterator[LiveBytes]:
    """Inside the block, tensors are fake, those of `model` (on the meta device) included, and rows end at `stop`."""
    with FakeTensorMode(), HostReads(stop):
        made: dict[Tensor, Tensor] = {}
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        # Tied weights are one tensor here too.
                        table[name] = made[tensor] if tensor in made else made.setdefault(tensor, _fake(tensor))
        with LiveBytes(vocab=model.get_output_embeddings().weight.shape[0]) as live:
            yield live


def _fake(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
