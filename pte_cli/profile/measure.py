"""The same training step with its numbers, where the model runs on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from pte_cli.config import RunConfig
from pte_cli.model.adapter import add_adapter
from pte_cli.model.load import load_model
from pte_cli.profile.live import LiveBytes, Peak
from pte_cli.profile.profiled import ProfiledModel
from pte_cli.profile.step import Setting, generate, step_peaks
from pte_cli.rollout.prepare import build_policy


@dataclass(frozen=True)
class Measurement:
    """peaks: bytes of live tensors by phase. allocated: what CUDA's allocator had handed out at most, else None."""

    peaks: dict[str, Peak]
    allocated: int | None

    @property
    def peak(self) -> Peak:
        """The largest of all phases."""
        return max(self.peaks.values(), key=lambda peak: peak.total)


def adapted_model(config: RunConfig) -> torch.nn.Module:
    """The model that `config` names with a fresh adapter."""
    base: PreTrainedModel = load_model(config.model)[0]
    torch.manual_seed(config.seed)
    return add_adapter(
        base,
        encoder=config.encoder.name,
        encoder_options=config.encoder.options,
        rank=config.adapter.rank,
        alpha=config.adapter.alpha,
        target_modules=config.adapter.target_modules,
    )


def measure_step(config: RunConfig, setting: Setting) -> Measurement:
    """Load the model of `config` and train it one step as `setting` says."""
    model = adapted_model(config)
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(model.device)
    with LiveBytes(vocab=model.get_output_embeddings().weight.shape[0]) as live:
        profiled = ProfiledModel(model, live, gradient_checkpointing=config.train.gradient_checkpointing)
        peaks = step_peaks(profiled, build_policy(config), setting, trained_before=True, rollout=generate)
    return Measurement(peaks, torch.cuda.max_memory_allocated(model.device) if cuda else None)
