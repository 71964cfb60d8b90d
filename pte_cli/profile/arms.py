"""The arms that reports set side by side, as settings."""

from __future__ import annotations

from dataclasses import dataclass

from pte_cli.config import EncoderConfig, EvictConfig, RunConfig

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
