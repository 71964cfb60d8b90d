"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

from pte_cli.budget import window
from pte_cli.config import CHOICES, RunConfig, section_settings
from pte_cli.plugin_options import check_options
from pte_cli.registry import build, load_registry


def check_config(config: RunConfig) -> RunConfig:
    """`config` with every option of its strategies filled in, so that what is recorded starts the same run.

    UsageError for an unknown strategy, a wrong option, or a budget that no prompt of the task can fit.
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
    if build(specs["evict"], options["evict"]).bounded:
        # A lower bound, whatever the tokenizer; the engine checks the exact lengths again.
        window(config.evict.budget, task.shortest_prompt)
    filled = {
        section: getattr(config, section).model_copy(update={"options": options[section].model_dump(mode="json")})
        for section in CHOICES
    }
    return config.model_copy(update=filled)
