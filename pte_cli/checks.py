"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

from pte_cli.budget import window
from pte_cli.config import RunConfig
from pte_cli.model.source import check_trainable, describe_model
from pte_cli.registry import check_options, load_registry
from pte_cli.tasks.recall import prompt_words


def check_config(config: RunConfig, *, dry_run: bool = False) -> None:
    """UsageError for an unknown strategy, a wrong option, a budget that no prompt fits, or a model we can't load.

    A dry run may name a preset, which has no weights.
    """
    registry = load_registry()
    policy = registry.eviction(config.evict.policy)
    options = check_options("evict.options", policy, config.evict.options)
    encoder = registry.encoder(config.encoder.name)
    check_options("encoder.options", encoder, config.encoder.options)
    if policy.build(options).bounded:
        # Every word is at least one token, whatever the tokenizer; the engine checks the exact lengths again.
        window(config.evict.budget, prompt_words(config.task.entries, config.task.queries))
    if not dry_run:
        check_trainable(config.model)
    describe_model(config.model)
