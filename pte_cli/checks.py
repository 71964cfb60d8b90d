"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pte_cli.api import pinned_length
from pte_cli.budget import window
from pte_cli.config import CHOICES, RunConfig, Section, section_settings
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.model.source import check_trainable, describe_model
from pte_cli.plugin_options import check_options
from pte_cli.registry import Registry, build, load_registry
from pte_cli.tasks.data.sources import absolute


def check_config(config: RunConfig, *, dry_run: bool = False, asks_task: bool = True) -> RunConfig:
    """`config` with every option of its strategies filled in, so that what is recorded starts the same run.

    UsageError for an unknown strategy, a wrong option, strategies that don't fit each other, a model we can't load, or,
    where the prompts are the task's (asks_task), a budget that none of them can fit. A dry run may name a preset, which
    has no weights.
    """
    registry = load_registry()
    specs = {
        "evict": registry.eviction(config.evict.policy),
        "encoder": registry.encoder(config.encoder.name),
        "task": registry.task(config.task.name),
    }
    options = {
        section: check_options(
            f"{section}.options", specs[section], getattr(config, section).options, section_settings(section)
        )
        for section in CHOICES
    }
    task = build(specs["task"], options["task"])
    policy = build(specs["evict"], options["evict"])
    needs = specs["encoder"].needs(options["encoder"])
    if policy.bounded and policy.granularity != "uniform" and "nll_gradient" in needs:
        raise UsageError(
            f"encoder.name = {config.encoder.name!r} with these options asks for the likelihood of the evicted tokens, "
            f"but evict.policy = {config.evict.policy!r} drops different ones in each {policy.granularity}; use a "
            "policy with granularity 'uniform' or another encoder.options.objective"
        )
    if config.train.gradient == "exact" and "nll_gradient" in needs:
        raise UsageError(
            f"train.gradient = 'exact': encoder.name = {config.encoder.name!r} with these options learns from a "
            "gradient of its own, whose second derivative is not computed; use train.gradient = 'truncated' or another "
            "encoder.options.objective"
        )
    _check_trackers(config.train.trackers)
    if config.sampling.compile:
        _check_compile(config)
    if policy.bounded and asks_task and config.data.source is None:
        # A lower bound, whatever the tokenizer; the engine checks the exact lengths again.
        window(config.evict.budget, task.shortest_prompt, pinned_length(policy, task.shortest_prompt))
    if not dry_run:
        check_trainable(config.model)
    describe_model(config.model)
    filled = {
        section: getattr(config, section).model_copy(update={"options": options[section].model_dump(mode="json")})
        for section in CHOICES
    }
    return config.model_copy(update={**filled, **_check_data(config, registry)})


def _check_compile(config: RunConfig) -> None:
    """UsageError where decoding steps can't be compiled: no compiler, or weights that are no plain tensors."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UsageError(
            f"sampling.compile: needs a C++ compiler and there is no {compiler!r}; install one, name it in CXX, or "
            "leave sampling.compile off"
        )
    # Compiled cosines round differently in float32, where RoPE is computed: too coarse for a float64 model.
    refused = {"quantization": "4bit", "device": "mps", "dtype": "float64"}
    for name, value in refused.items():
        if getattr(config.model, name) == value:
            raise UsageError(f"sampling.compile: not with model.{name} = {value!r}; change one of the two")


def _check_trackers(names: Sequence[str]) -> None:
    """UsageError for a tracker that is not installed, or that would ask for a login."""
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"train.trackers = {name!r}: is not installed; pip install {name}")
    if "wandb" in names and not (
        os.environ.get("WANDB_API_KEY")
        or os.environ.get("WANDB_MODE") in ("offline", "disabled")
        or any((Path.home() / file).is_file() for file in (".netrc", "_netrc"))
    ):
        raise UsageError(
            "train.trackers = 'wandb': would ask for a login; set WANDB_API_KEY, or WANDB_MODE=offline for files only"
        )


def _check_data(config: RunConfig, registry: Registry) -> dict[str, Section]:
    """The sections data and reward with local paths absolute and every option filled in. Reads no data."""
    data, reward = config.data, config.reward
    if data.source is None:
        for section, given in (("data", data), ("reward", reward)):
            changed = given.model_fields_set & {k for k, v in type(given)() if v != getattr(given, k)}
            if changed:
                raise UsageError(f"{section}.{min(changed)}: needs data; set data.source (the task scores itself)")
        return {}
    if reward.weights and len(reward.weights) != len(reward.names):
        raise UsageError(
            f"reward.weights = {reward.weights!r}: {len(reward.weights)} for {len(reward.names)} reward.names"
        )
    for name in reward.options:
        if reward.names and name not in reward.names:
            raise UsageError(f"reward.options.{name}: not one of reward.names; {did_you_mean(name, reward.names)}")
    if len(set(reward.names)) < len(reward.names):
        raise UsageError(f"reward.names = {reward.names!r}: one is named twice")
    options = {
        name: check_options(f"reward.options.{name}", registry.reward(name), reward.options.get(name, {}))
        for name in dict.fromkeys([*reward.names, *reward.options])
    }
    return {
        "data": data.model_copy(update={"source": absolute(data.source), "eval_source": absolute(data.eval_source)}),
        "reward": reward.model_copy(
            update={"options": {name: given.model_dump(mode="json") for name, given in options.items()}}
        ),
    }
