"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

from pte_cli.budget import window
from pte_cli.config import RunConfig
from pte_cli.registry import check_options, load_registry
from pte_cli.tasks.recall import prompt_words


def check_config(config: RunConfig) -> None:
    """UsageError for an unknown strategy, a wrong option, or a budget that no prompt of the task can fit."""
    registry = load_registry()
    policy = registry.eviction(config.evict.policy)
    options = check_options("evict.options", policy, config.evict.options)
    encoder = registry.encoder(config.encoder.name)
    check_options("encoder.options", encoder, config.encoder.options)
    if policy.build(options).bounded:
        # Every word is at least one token, whatever the tokenizer; the engine checks the exact lengths again.
        window(config.evict.budget, prompt_words(config.task.entries, config.task.queries))
