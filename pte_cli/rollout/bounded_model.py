"""An adapted model as the engine and the replay use it: one pass under a bounded cache, absorb, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from pte_cli.api import Encoder, Evicted, EvictionPolicy, State
from pte_cli.errors import PteError
from pte_cli.model.adapter import active_encoder, cores_set, encoder_shape
from pte_cli.model.rope import layer_rotations, unrotate
from pte_cli.model.shards import Shards
from pte_cli.rollout.attention import using_bounded_attention
from pte_cli.rollout.cache import EMPTY, BoundedCache, CacheShape
from pte_cli.rollout.checkpointing import layers_checkpointed
from pte_cli.rollout.decoder import Decoder
from pte_cli.rollout.observed import Wanted

if TYPE_CHECKING:
    from pte_cli.rollout.compiled import CompiledSteps

NLL_GRADIENT = "nll_gradient"


class BoundedModel:
    """Wraps a `PeftModel` of our kind, or a bare causal LM (no adapter: the paper's Baseline).

    Holds no state of its own beyond a session; caches and encoder states belong to the engine and the replay. With
    `gradient_checkpointing`, a pass with gradients keeps the activations of one layer at a time. compiled: decodes
    through these. shards: of the model's layers, where they are shared out over processes.
    """

    def __init__(
        self,
        model: PeftModel | PreTrainedModel,
        *,
        gradient_checkpointing: bool = False,
        compiled: CompiledSteps | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.model, self.shards = model, shards
        self.gradient_checkpointing = gradient_checkpointing
        self.compiled = compiled
        self.peft = model if isinstance(model, PeftModel) else None
        self.causal: PreTrainedModel = model.get_base_model() if self.peft else model
        self.backbone = self.causal.get_decoder()
        self.head = self.causal.get_output_embeddings()
        self.encoder: Encoder | None = active_encoder(model) if self.peft else None
        self.layers = self.causal.config.get_text_config().num_hidden_layers
        self.rotations = layer_rotations(self.causal.config)
        self.decoder: Decoder | None = None

    @property
    def device(self) -> torch.device:
        return self.causal.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @contextmanager
    def session(self) -> Iterator[None]:
        """Attend through bounded caches inside the block, in evaluation mode (no dropout); restored after it.

        The weights must not change inside. PteError where layers that go through their own modules are shared out.
        """
        decoder = Decoder.of(self.backbone, self.rotations, self.shards)
        if decoder is None and self.shards is not None:
            raise PteError("FSDP: the model's layers have hooks, or more than one active adapter; remove them")
        training = self.model.training
        self.model.eval()
        self.decoder = decoder
        try:
            with using_bounded_attention(self.causal):
                yield
        finally:
            self.decoder = None
            self.model.train(training)

    @contextmanager
    def adapter_off(self) -> Iterator[BoundedModel]:
        """The reference policy: the same model without adapter and encoder."""
        if self.peft is None:
            yield self
            return
        with self.peft.disable_adapter():
            yield BoundedModel(self.causal, shards=self.shards)

    def new_cache(self, policy: EvictionPolicy, batch: int, capacity: int, *, observe: bool = True) -> BoundedCache:
        """An empty cache with as many tables of positions as the policy's granularity asks for.

        observe: record what the policy needs to see; False where it will not be asked.
        """
        sizes = encoder_shape(self.causal.config, rank=0)
        shape = CacheShape(
            sizes.layers,
            sizes.kv_heads,
            sizes.head_dim,
            per_layer=policy.granularity in ("layer", "head"),
            per_head=policy.granularity == "head",
        )
        wanted = Wanted.by(policy) if observe else Wanted()
        return BoundedCache(shape, batch, capacity, dtype=self.dtype, device=self.device, wanted=wanted)

    def hidden(self, ids: Tensor, position_ids: Tensor, cache: BoundedCache, cores: Sequence[Tensor | None]) -> Tensor:
        """Last hidden states `[B, T, hidden]` of `ids` `[B, T]` at `position_ids` (-1: padding)."""
        twice = self.gradient_checkpointing and torch.is_grad_enabled()
        if self.decoder is not None:
            return self.decoder(ids, position_ids, cache, cores, checkpointed=twice)
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
        """The encoder's next state, from `evicted` as `readable` gives it."""
        return self.encoder.absorb(state, evicted) if self.encoder is not None else state

    def readable(self, evicted: Evicted, before: State, context: Callable[[], tuple[BoundedCache, Tensor]]) -> Evicted:
        """`evicted`, which has just left the cache, as the encoder wants it.

        Keys are un-rotated unless it asks otherwise. Where it needs the gradient of the evicted tokens' likelihood,
        that is computed at the state `before`; `context()` gives what is left of the rows' cache and their token ids
        `[b, T]`, at least one past the last evicted position.
        """
        if self.encoder is None:
            return evicted
        if NLL_GRADIENT in getattr(self.encoder, "needs", frozenset()):
            evicted = replace(evicted, nll_gradient=self.nll_gradient(evicted, before, *context()))
        if self.encoder.rotated_keys:
            return evicted
        rotary = self.backbone.rotary_emb
        return replace(evicted, keys=unrotate(evicted.keys, evicted.positions, rotary, self.rotations))

    @torch.enable_grad()
    def nll_gradient(self, evicted: Evicted, before: State, cache: BoundedCache, sequences: Tensor) -> State:
        """The gradient at `before` of each row's mean -log p(next token) over the evicted tokens.

        They are read again as one block: each sees what is left in `cache` and the evicted tokens up to itself.
        Raises ValueError where layers or heads dropped different tokens.
        """
        if evicted.positions.shape[0] > 1 or evicted.positions.shape[2] > 1:
            raise ValueError("the likelihood of evicted tokens needs a policy of granularity 'uniform'")
        positions = evicted.positions[0, :, 0].masked_fill(~evicted.mask, EMPTY)
        where = positions.clamp(min=0)
        leaf = {name: tensor.detach().requires_grad_() for name, tensor in before.items()}
        cache.begin_append(positions)
        hidden = self.hidden(sequences.gather(1, where), positions, cache, self.cores(leaf))
        logits = self.head(hidden)
        losses = F.cross_entropy(
            logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
            sequences.gather(1, where + 1).flatten(),
            reduction="none",
        ).view_as(positions)
        # Rows don't depend on each other: the gradient of the sum is each row's own.
        total = ((losses * evicted.mask).sum(1) / evicted.mask.sum(1)).sum()
        found = torch.autograd.grad(total, list(leaf.values()), materialize_grads=True)
        return dict(zip(leaf, found, strict=True))
