"""The contracts between the program and its strategies. Nothing here imports torch at run time."""

from pte_cli.api.encoder import Encoder, EncoderShape, EncoderSpec, Evicted, State
from pte_cli.api.eviction import EvictionPolicy, EvictionSpec, EvictionView, pinned_length
from pte_cli.api.launcher import Job, Launcher, LauncherSpec
from pte_cli.api.options import NoOptions
from pte_cli.api.reward import Reward, RewardSpec
from pte_cli.api.task import Problem, Task, TaskSpec

API_VERSION = 1
"""The version of these contracts. A spec that states another one is refused with a clear message."""

__all__ = [
    "API_VERSION",
    "Encoder",
    "EncoderShape",
    "EncoderSpec",
    "Evicted",
    "EvictionPolicy",
    "EvictionSpec",
    "EvictionView",
    "Job",
    "Launcher",
    "LauncherSpec",
    "NoOptions",
    "Problem",
    "Reward",
    "RewardSpec",
    "State",
    "Task",
    "TaskSpec",
    "pinned_length",
]
