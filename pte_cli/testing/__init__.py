"""What a plugin must do to be used: checks that its author runs, and that every built-in one passes.

As tests, with one attribute (the name of the plugin, `distribution:name`, or its spec)::

    from pte_cli.testing import EvictionContract

    class TestMine(EvictionContract):
        plugin = "my-plugin:mine"

As a call: `run_checks("mine")` gives one `Outcome` per check; `pte plugins check mine` prints them.
"""

from pte_cli.testing.contract import CheckFailed, Contract, Outcome
from pte_cli.testing.encoder import EncoderContract
from pte_cli.testing.eviction import EvictionContract
from pte_cli.testing.reward import RewardContract
from pte_cli.testing.run import run_checks
from pte_cli.testing.task import TaskContract

__all__ = [
    "CheckFailed",
    "Contract",
    "EncoderContract",
    "EvictionContract",
    "Outcome",
    "RewardContract",
    "TaskContract",
    "run_checks",
]
