"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

from pte_cli.api import pinned_length
from pte_cli.budget import window
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.registry import check_options, load_registry
from pte_cli.tasks.recall import prompt_words


def check_config(config: RunConfig) -> None:
    """UsageError for an unknown strategy, a wrong option, strategies that don't fit each other, or a budget too small
    for any prompt of the task."""
    registry = load_registry()
    spec = registry.eviction(config.evict.policy)
    policy = spec.build(check_options("evict.options", spec, config.evict.options))
    encoder = registry.encoder(config.encoder.name)
    needs = encoder.needs(check_options("encoder.options", encoder, config.encoder.options))
    if policy.bounded and policy.granularity != "uniform" and "nll_gradient" in needs:
        raise UsageError(
            f"encoder.name = {config.encoder.name!r} with these options asks for the likelihood of the evicted tokens, "
            f"but evict.policy = {config.evict.policy!r} drops different ones in each {policy.granularity}; use a "
            "policy with granularity 'uniform' or another encoder.options.objective"
        )
    if policy.bounded:
        # Every word is at least one token, whatever the tokenizer; the engine checks the exact lengths again.
        shortest = prompt_words(config.task.entries, config.task.queries)
        window(config.evict.budget, shortest, pinned_length(policy, shortest))
