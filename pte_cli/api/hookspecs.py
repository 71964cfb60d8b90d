"""The hooks a plugin may implement. Each returns specs; nothing heavy is imported until one is built."""

from __future__ import annotations

import pluggy

from pte_cli.api.encoder import EncoderSpec
from pte_cli.api.eviction import EvictionSpec
from pte_cli.api.launcher import LauncherSpec
from pte_cli.api.reward import RewardSpec
from pte_cli.api.task import TaskSpec

hookspec = pluggy.HookspecMarker("pte")


@hookspec
def pte_eviction_policies() -> list[EvictionSpec]:  # type: ignore[empty-body]
    """The eviction policies this plugin offers (`--evict NAME`)."""


@hookspec
def pte_encoders() -> list[EncoderSpec]:  # type: ignore[empty-body]
    """The encoders this plugin offers (`--encoder NAME`)."""


@hookspec
def pte_rewards() -> list[RewardSpec]:  # type: ignore[empty-body]
    """The rewards this plugin offers."""


@hookspec
def pte_tasks() -> list[TaskSpec]:  # type: ignore[empty-body]
    """The procedural tasks this plugin offers."""


@hookspec
def pte_launchers() -> list[LauncherSpec]:  # type: ignore[empty-body]
    """The launchers this plugin offers to sweeps."""
