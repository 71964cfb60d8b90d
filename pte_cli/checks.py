"""What can be wrong with a configuration and is known before any model is loaded. Imports no torch."""

from __future__ import annotations

from pte_cli.api import pinned_length
from pte_cli.budget import window
from pte_cli.config import CHOICES, RunConfig, section_settings
from pte_cli.errors import UsageError
from pte_cli.plugin_options import check_options
from pte_cli.registry import build, load_registry


def check_config(config: RunConfig, *, asks_task: bool = True) -> RunConfig:
    """`config` with every option of its strategies filled in, so that what is recorded starts the same run.

    UsageError for an unknown strategy, a wrong option, strategies that don't fit each other, or, where the prompts are
    the task's (asks_task), a budget that none of them can fit.
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
    if policy.bounded and asks_task:
        # A lower bound, whatever the tokenizer; the engine checks the exact lengths again.
        window(config.evict.budget, task.shortest_prompt, pinned_length(policy, task.shortest_prompt))
    filled = {
        section: getattr(config, section).model_copy(update={"options": options[section].model_dump(mode="json")})
        for section in CHOICES
    }
    return config.model_copy(update=filled)
