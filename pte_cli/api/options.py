"""Options of a strategy are a pydantic model of its own; this is the one for strategies that have none."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class NoOptions(BaseModel):
    """No options: any that is given is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
