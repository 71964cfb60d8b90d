"""What an encoder must do."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from unittest import SkipTest

import torch
from peft import load_peft_weights, set_peft_model_state_dict
from torch import Tensor, nn

from pte_cli.api import Evicted, State
from pte_cli.model.adapter import encoder_shape
from pte_cli.rollout.trace import Trace
from pte_cli.testing.contract import Contract, require
from pte_cli.testing.models import VOCAB, WatchedModel, adapted, in_double
from pte_cli.testing.runs import NOISE, Oldest, largest_gap, require_same, rollout, scored
from pte_cli.train.replay import replay

RANK = 8
EXACT = 1e-9
"""Difference that float64 rounding explains, for values of the order of 1."""
STEP = 1e-5
"""Of the finite differences, whose own error is then about 1e-9."""


class EncoderContract(Contract):
    """Checks of an encoder, in an adapter on small random models under the policy that evicts the oldest."""

    kind: ClassVar[str] = "encoder"

    def test_shapes(self) -> None:
        """States `[L, B, ...]` that keep names, shapes and dtypes; cores `[B, r, r]` or None; all finite."""
        model = self._model()
        encoder = model.encoder
        require(isinstance(encoder.rotated_keys, bool), f"rotated_keys is {encoder.rotated_keys!r}, not True or False")
        first = encoder.init(3)
        require(isinstance(first, dict), f"init returned {type(first).__name__}, not a dict of tensors")
        for name, tensor in first.items():
            require(
                tuple(tensor.shape[:2]) == (model.layers, 3),
                f"init(3)[{name!r}] has shape {list(tensor.shape)}; it must begin with [{model.layers} layers, 3 rows]",
            )
        _require_cores(model, first, 3)
        error: Exception | None = None
        try:
            self._rollout(model)
        except Exception as caught:  # what absorb returned says more than where the engine stumbled over it
            error = caught
        for before, evicted, after in model.absorbed:
            for name in before.keys() | after.keys():
                require(name in before and name in after, f"absorb adds or drops {name!r}")
                one, two = before[name], after[name]
                require(
                    one.shape == two.shape and one.dtype == two.dtype,
                    f"absorb turns {name!r} from {list(one.shape)} {one.dtype} into {list(two.shape)} {two.dtype}",
                )
                require(bool(two.isfinite().all()), f"absorb makes {name!r} infinite or NaN")
            _require_cores(model, after, len(evicted.mask))
        if error is not None:
            raise error

    def test_inputs_unchanged(self) -> None:
        """absorb changes no tensor it was given: the replay uses them again."""
        model, calls = self._watched()
        for before, evicted, _ in calls:
            kept = {name: tensor.clone() for name, tensor in before.items()}
            keys, values = evicted.keys.clone(), evicted.values.clone()
            with torch.no_grad():
                model.encoder.absorb(before, evicted)
            for name, tensor in kept.items():
                require(torch.equal(before[name], tensor), f"absorb changed the state {name!r} it was given")
            require(torch.equal(evicted.keys, keys), "absorb changed the keys it was given")
            require(torch.equal(evicted.values, values), "absorb changed the values it was given")

    def test_rows_kept_apart(self) -> None:
        """What one row loses changes no other row's state, and a row alone generates as it does in a batch."""
        model, calls = self._watched()
        for before, evicted, after in calls:
            if len(evicted.mask) < 2:
                continue
            changed = replace(evicted, keys=_other_row(evicted.keys), values=_other_row(evicted.values))
            with torch.no_grad():
                found = model.encoder.absorb(before, changed)
            for name, tensor in after.items():
                rest = [row for row in range(len(evicted.mask)) if row != 1]
                _require_close(
                    found[name][:, rest], tensor[:, rest], f"other keys in one row change {name!r} of another"
                )
        require_same(
            rollout(self._model(), Oldest(), rows=1), rollout(self._model(), Oldest(), rows=4), "alone and in a batch"
        )

    def test_padding_ignored(self) -> None:
        """Keys and values that the mask marks as padding do not count."""
        model, calls = self._watched()
        padded = [call for call in calls if not bool(call[1].mask.all())]
        require(bool(padded), "no eviction had padding")
        for before, evicted, after in padded:
            hidden = ~evicted.mask[None, :, None, :, None]
            junk = replace(
                evicted,
                keys=torch.where(hidden, 1e3 * torch.randn_like(evicted.keys), evicted.keys),
                values=torch.where(hidden, 1e3 * torch.randn_like(evicted.values), evicted.values),
            )
            with torch.no_grad():
                found = model.encoder.absorb(before, junk)
            for name, tensor in after.items():
                _require_close(found[name], tensor, f"what the mask hides changes {name!r}")

    def test_state_reset_between_sequences(self) -> None:
        """A sequence starts from `init`, whatever was generated or scored before it."""
        model = self._model()
        traces = self._rollout(model)
        first = scored(model, traces[:1], Oldest())
        scored(model, traces[1:], Oldest())
        _require_close(
            scored(model, traces[:1], Oldest()), first, "scoring other sequences changes a sequence's scores"
        )
        # One row: the second sequence takes over the slots of the first.
        queue = rollout(self._model(), Oldest(), lengths=(6, 9), rows=1, temperature=0.0)
        both = rollout(self._model(), Oldest(), lengths=(6, 9), rows=2, temperature=0.0)
        require_same(queue, both, "one after the other and side by side")

    def test_gradients(self) -> None:
        """Every registered parameter gets a gradient that is finite and not zero."""
        model = self._model()
        self._loss(model, self._rollout(model))
        for name, parameter in model.encoder.named_parameters():
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            require(gradient is not None, f"parameter {name!r} gets no gradient: no log-probability depends on it")
            require(bool(gradient.isfinite().all()), f"the gradient of {name!r} is infinite or NaN")
            require(bool(gradient.ne(0).any()), f"the gradient of {name!r} is zero everywhere")

    def test_gradient_equals_finite_difference(self) -> None:
        """The replay's gradient is the true one, where its truncation loses nothing.

        One layer whose keys and values no core touches: everything comes through init, absorb and core. The entry of
        the largest gradient of each parameter is compared with a central difference.
        """
        model = in_double(self._model(layers=1, target_modules=("q_proj", "o_proj", "down_proj")))
        if needs := getattr(model.encoder, "needs", None):
            raise SkipTest(f"it is given {', '.join(needs)}, through which nothing is differentiated")
        traces = rollout(model, Oldest(), lengths=(5, 8), tokens=36)
        self._loss(model, traces)
        for name, parameter in model.encoder.named_parameters():
            if parameter.grad is None:
                continue
            index = int(parameter.grad.abs().argmax())
            gradient, sums = parameter.grad.view(-1)[index].item(), []
            for move in (STEP, -2 * STEP):
                with torch.no_grad():
                    parameter.view(-1)[index] += move
                sums.append(sum(_weighted(scored(model, [trace], Oldest())) for trace in traces))
            with torch.no_grad():
                parameter.view(-1)[index] += STEP
            difference = (sums[0] - sums[1]) / (2 * STEP)
            require(
                abs(gradient - difference) <= 1e-4 * abs(difference) + 1e-7,
                f"the gradient of {name!r} is {gradient:.6g}, but a finite difference gives {difference:.6g}",
            )

    def test_save_and_load(self) -> None:
        """An adapter that is saved and loaded into another model scores the same."""
        saved, other = self._model(), self._model(seed=7)
        traces = self._rollout(saved)
        with tempfile.TemporaryDirectory() as folder:
            saved.model.save_pretrained(folder, safe_serialization=True)
            set_peft_model_state_dict(other.model, load_peft_weights(folder, device="cpu"))
        # The other model was drawn with another seed; only the base model under the adapter must be the same.
        other.causal.load_state_dict(_base_weights(saved.causal), strict=False)
        gap = (scored(saved, traces, Oldest()) - scored(other, traces, Oldest())).abs().max().item()
        require(
            gap <= EXACT,
            f"after saving and loading, log-probabilities differ by {gap:.1e}; what matters must be a parameter",
        )

    def test_rollout_equals_replay(self) -> None:
        """Log-probabilities of rollout and replay agree in float32."""
        for family in ("qwen2", "llama"):
            model = self._model(family=family, dtype=torch.float32)
            gap = largest_gap(model, self._rollout(model), Oldest())
            require(gap <= NOISE, f"{family}: log-probabilities differ by {gap:.1e} (float32)")

    def _model(self, seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any) -> WatchedModel:
        """An adapter with the encoder that is checked, on a small random model."""
        model = adapted("none", dtype=dtype, rank=RANK, seed=seed, **more)
        torch.manual_seed(seed + 2)
        encoder = self.make(encoder_shape(model.causal.config, RANK))
        require(isinstance(encoder, nn.Module), f"build returned a {type(encoder).__name__}, not a torch.nn.Module")
        model.model.base_model.pte_encoder[model.model.active_adapter] = encoder.to(dtype)
        return WatchedModel(model)

    def _rollout(self, model: WatchedModel) -> list[Trace]:
        traces = rollout(model, Oldest())
        require(max(len(trace.evictions) for trace in traces) > 2, "hardly anything was evicted")
        return traces

    def _watched(self) -> tuple[WatchedModel, Sequence[tuple[State, Evicted, State]]]:
        """A model and its absorb calls in one replay, detached, keys as the encoder wants them."""
        model = self._model()
        traces = self._rollout(model)
        model.absorbed.clear()
        scored(model, traces, Oldest())
        return model, model.absorbed

    def _loss(self, model: WatchedModel, traces: Sequence[Trace]) -> None:
        """Gradients of a weighted sum of all log-probabilities, in the model's parameters."""
        for trace in traces:
            weights = _weights(len(trace.completion))
            replay(
                model,
                [trace],
                Oldest(),
                vocab=VOCAB,
                loss=lambda found, weights=weights: (found.logprobs * weights[found.tokens]).sum(),
            )


def _require_cores(model: WatchedModel, state: State, rows: int) -> None:
    for layer in range(model.layers):
        core = model.encoder.core(state, layer)
        if core is not None:
            require(
                tuple(core.shape) == (rows, RANK, RANK),
                f"core has shape {list(core.shape)}; it must be [rows, r, r] = {[rows, RANK, RANK]}",
            )
            require(bool(core.isfinite().all()), "core is infinite or NaN")


def _weights(length: int) -> Tensor:
    return torch.linspace(-1.0, 1.0, length, dtype=torch.float64).sin() + 0.1


def _weighted(logprobs: Tensor) -> float:
    return float((logprobs[0] * _weights(logprobs.shape[1])).sum())


def _other_row(tensor: Tensor) -> Tensor:
    """`[L, b, ...]` with row 1 replaced by something else."""
    changed = tensor.clone()
    changed[:, 1] = 3.0 * torch.randn_like(changed[:, 1])
    return changed


def _require_close(found: Tensor, expected: Tensor, reason: str) -> None:
    gap = float((found - expected).abs().max()) if found.numel() else 0.0
    size = max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
    require(gap <= EXACT * size, f"{reason} by {gap:.1e}")


def _base_weights(causal: nn.Module) -> dict[str, Tensor]:
    """What is not part of the adapter."""
    return {n: t for n, t in causal.state_dict().items() if "lora_" not in n and "pte_encoder" not in n}
