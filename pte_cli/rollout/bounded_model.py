"""An adapted model as the engine and the replay use it: one pass under a bounded cache, absorb, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from pte_cli.api import Encoder, Evicted, EvictionPolicy, State
from pte_cli.model.adapter import active_encoder, cores_set, encoder_shape
from pte_cli.model.rope import layer_rotations, unrotate
from pte_cli.rollout.attention import using_bounded_attention
from pte_cli.rollout.cache import BoundedCache, CacheShape
from pte_cli.rollout.checkpointing import layers_checkpointed


class BoundedModel:
    """Wraps a `PeftModel` of our kind, or a bare causal LM (no adapter: the paper's Baseline).

    Holds no state of its own; caches and encoder states belong to the engine and the replay. With
    `gradient_checkpointing`, a pass with gradients keeps the activations of one layer at a time.
    """

    def __init__(self, model: PeftModel | PreTrainedModel, *, gradient_checkpointing: bool = False) -> None:
        self.model = model
        self.gradient_checkpointing = gradient_checkpointing
        self.peft = model if isinstance(model, PeftModel) else None
        self.causal: PreTrainedModel = model.get_base_model() if self.peft else model
        self.backbone = self.causal.get_decoder()
        self.head = self.causal.get_output_embeddings()
        self.encoder: Encoder | None = active_encoder(model) if self.peft else None
        self.layers = self.causal.config.get_text_config().num_hidden_layers
        self.rotations = layer_rotations(self.causal.config)

    @property
    def device(self) -> torch.device:
        return self.causal.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @contextmanager
    def session(self) -> Iterator[None]:
        """Attend through bounded caches inside the block, in evaluation mode (no dropout); restored after it."""
        training = self.model.training
        self.model.eval()
        try:
            with using_bounded_attention(self.causal):
                yield
        finally:
            self.model.train(training)

    @contextmanager
    def adapter_off(self) -> Iterator[BoundedModel]:
        """The reference policy: the same model without adapter and encoder."""
        if self.peft is None:
            yield self
            return
        with self.peft.disable_adapter():
            yield BoundedModel(self.causal)

    def new_cache(self, policy: EvictionPolicy, batch: int, capacity: int) -> BoundedCache:
        """An empty cache with as many tables of positions as the policy's granularity asks for."""
        sizes = encoder_shape(self.causal.config, rank=0)
        shape = CacheShape(
            sizes.layers,
            sizes.kv_heads,
            sizes.head_dim,
            per_layer=policy.granularity in ("layer", "head"),
            per_head=policy.granularity == "head",
        )
        return BoundedCache(shape, batch, capacity, dtype=self.dtype, device=self.device)

    def hidden(self, ids: Tensor, position_ids: Tensor, cache: BoundedCache, cores: Sequence[Tensor | None]) -> Tensor:
        """Last hidden states `[B, T, hidden]` of `ids` `[B, T]` at `position_ids` (-1: padding)."""
        twice = self.gradient_checkpointing and torch.is_grad_enabled()
        with (
            cores_set(self.peft, cores) if self.peft else nullcontext(),
            layers_checkpointed(self.backbone.layers, cache, self.peft, cores) if twice else nullcontext(),
        ):
            return self.backbone(
                input_ids=ids,
                position_ids=position_ids.clamp(min=0),
                cache=cache,
                use_cache=True,
                bounded_cache=cache,
            ).last_hidden_state

    def init_state(self, batch: int) -> State:
        return self.encoder.init(batch) if self.encoder is not None else {}

    def cores(self, state: State) -> list[Tensor | None]:
        """One core per layer for `state`; None for plain LoRA."""
        if self.encoder is None:
            return [None] * self.layers
        return [self.encoder.core(state, layer) for layer in range(self.layers)]

    def absorb(self, state: State, evicted: Evicted) -> State:
        """The encoder's next state. `evicted` comes from the cache, rotated."""
        return self.encoder.absorb(state, evicted) if self.encoder is not None else state

    def readable(self, evicted: Evicted) -> Evicted:
        """`evicted` with its keys as the encoder wants them: un-rotated unless it asks otherwise."""
        if self.encoder is None or self.encoder.rotated_keys:
            return evicted
        return replace(
            evicted, keys=unrotate(evicted.keys, evicted.positions, self.backbone.rotary_emb, self.rotations)
        )
