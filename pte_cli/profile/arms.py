"""What reports set side by side: arms, the bounds of their cache, and the lengths of their steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pte_cli.config import EncoderConfig, EvictConfig, RunConfig
from pte_cli.profile.step import Gradient, Setting
from pte_cli.rollout.engine import Budget

FULL = "full LoRA"


@dataclass(frozen=True)
class Arm:
    """name: as reports show it. config: what a run of this arm would be configured with."""

    name: str
    config: RunConfig

    @property
    def bounded(self) -> bool:
        """Whether the budget applies."""
        return self.config.evict.policy != "full"


def arms_of(config: RunConfig) -> tuple[Arm, ...]:
    """Plain LoRA with the full cache, plain LoRA under the policy of `config`, and that with its encoder."""
    plain = config.model_copy(update={"encoder": EncoderConfig(name="none")})
    full = plain.model_copy(update={"evict": EvictConfig(policy="full", budget=config.evict.budget)})
    found = [Arm(FULL, full)]
    if config.evict.policy != "full":
        found.append(Arm("LoRA_c", plain))
        if config.encoder.name != "none":
            found.append(Arm("PTE" if config.encoder.name == "pte" else config.encoder.name, config))
    return tuple(found)


@dataclass(frozen=True)
class Curve:
    """One arm under one bound. steps: one for each length, shortest first. budget: tokens, None for the full cache."""

    arm: Arm
    budget: int | None
    steps: tuple[Setting, ...]

    def __str__(self) -> str:
        return self.arm.name if self.budget is None else f"{self.arm.name}, budget {self.budget}"

    def head(self, step: Setting) -> dict[str, str | int | None]:
        """How a report names one step of it."""
        return {"arm": self.arm.name, "budget": self.budget, "length": step.length}


@dataclass(frozen=True)
class Question:
    """Which steps a report is about. lengths: sampled tokens. accelerator: whether they are to run on one."""

    arms: Sequence[Arm]
    lengths: Sequence[int]
    budgets: Sequence[int]
    rows: int
    prompt: int
    gradient: Gradient = "exact"
    accelerator: bool = False

    def head(self, report: str) -> dict[str, str | int]:
        """What every report begins with."""
        return {"report": report, "rows": self.rows, "prompt": self.prompt}

    def curves(self) -> Iterator[Curve]:
        """Each arm, where it has a bound once for each budget."""
        for arm in self.arms:
            for budget in self.budgets if arm.bounded else (None,):
                yield Curve(arm, budget, tuple(self._step(arm, budget, length) for length in sorted(self.lengths)))

    def _step(self, arm: Arm, budget: int | None, length: int) -> Setting:
        step = Setting(self.rows, self.prompt, length, Budget(budget, arm.config.evict.frac), self.gradient)
        # On an accelerator AdamW updates all parameters at once, on a CPU one after the other.
        return replace(step, micro_batch=arm.config.train.micro_batch, foreach=True if self.accelerator else None)
