"""All checks of one plugin, without pytest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pte_cli.errors import UsageError
from pte_cli.plugin_options import check_options
from pte_cli.registry import Spec, kind_of, load_registry
from pte_cli.testing.contract import Contract, Outcome
from pte_cli.testing.encoder import EncoderContract
from pte_cli.testing.eviction import EvictionContract
from pte_cli.testing.reward import RewardContract
from pte_cli.testing.task import TaskContract

CONTRACTS: dict[str, type[Contract]] = {
    contract.kind: contract for contract in (EvictionContract, EncoderContract, RewardContract, TaskContract)
}


def run_checks(
    plugin: str | Spec, *, kind: str | None = None, options: Mapping[str, Any] | None = None
) -> list[Outcome]:
    """One outcome per check of the plugin's contract, in order.

    plugin: its name, `distribution:name`, or its spec. kind: needed where plugins of two kinds share the name.
    Raises UsageError for an unknown name, a wrong option, or a kind without a contract.
    """
    spec = load_registry().find(plugin, kind).spec if isinstance(plugin, str) else plugin
    found = kind_of(spec)
    if found.name not in CONTRACTS:
        raise UsageError(f"{spec.name!r} is a {found.title}; there are checks for: {', '.join(CONTRACTS)}")
    check_options(f"{found.section}.options", spec, options or {})
    contract = type("Checked", (CONTRACTS[found.name],), {"plugin": spec, "options": dict(options or {})})()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are so small that more threads only wait for each other
    try:
        return [contract.outcome(check) for check in contract.checks()]
    finally:
        torch.set_num_threads(threads)
