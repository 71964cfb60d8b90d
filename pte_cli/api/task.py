"""What a procedural task is: it draws problems and knows the right answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from pte_cli.api.options import NoOptions


@dataclass(frozen=True)
class Problem:
    """One problem as text, words separated by blanks.

    thinking + " " + answer is a worked completion, to which an end token is added.
    """

    prompt: str
    thinking: str
    answer: str


class Task(Protocol):
    """A source of problems with answers that can be checked.

    words: words that must each be one token of the model's tokenizer; empty where any tokenizer will do.
    shortest_prompt: a lower bound of a prompt's tokens, so that a budget too small is refused before a model is loaded.
    """

    words: tuple[str, ...]
    shortest_prompt: int

    def sample(self, rng: random.Random) -> Problem:
        """A random problem; all randomness from `rng`."""
        ...

    def score(self, problem: Problem, completion: str) -> float:
        """0 to 1 for a completion's text without end tokens; 1 means right."""
        ...


@dataclass(frozen=True)
class TaskSpec:
    """How a plugin announces a task. `build(options)` makes it; import anything heavy in there."""

    name: str
    summary: str
    build: Callable[[Any], Task]
    options: type[BaseModel] = NoOptions
    api: int = 1
