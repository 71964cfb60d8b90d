"""Rows with a meaning: prompt, reference, completion and the other columns; checked, and divided into two parts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pte_cli.config import DataConfig, RunConfig
from pte_cli.errors import UsageError
from pte_cli.tasks.data.columns import Columns, choose_columns
from pte_cli.tasks.data.files import Raw
from pte_cli.tasks.data.sources import GYM, is_local, read_rows
from pte_cli.tasks.prompts import Prompt, check_style

EVAL_FRACTION = 0.1
MATH, GYM_REWARD = "math-verify", "reasoning-gym"
PLAIN_TYPES = (str, int, float, type(None))


@dataclass(frozen=True)
class Row:
    """One example. place: where it is from. completion: None where none is recorded.

    columns: what rewards get: every column but the prompt's, the reference as `answer`, the question as `problem`.
    """

    place: str
    prompt: Prompt
    completion: str | None
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Dataset:
    """The rows a run trains on, those it is measured on, and the names of the rewards they are scored with.

    No prompt is in both.
    """

    train: tuple[Row, ...]
    held_out: tuple[Row, ...]
    columns: Columns
    rewards: tuple[str, ...]


def load_dataset(config: RunConfig) -> Dataset:
    """Read and check the data that `config.data` names. UsageError for the first thing that is wrong."""
    data = config.data
    if data.source is None:
        raise UsageError("data.source: not set")
    check_style(data.style, data.system)
    _check_source_settings(data)
    _check_eval_settings(data)
    raw = read_rows("data.source", data.source, "data.split", data.split, data)
    raw_eval = _read_eval(data)
    columns = choose_columns(raw, data.columns)
    rewards = config.reward.names or _default_rewards(data, columns)
    _check_objective(config, columns, raw, rewards)
    for name in config.reward.options:
        if name not in rewards:
            raise UsageError(f"reward.options.{name}: this run's rewards are {', '.join(rewards) or 'none'}")
    imitates = "sft" in config.train.objective
    used = columns if imitates else replace(columns, completion=None)
    rows = [_row(one, used, data, rewards) for one in raw]
    if raw_eval is None:
        train, held = split(rows, EVAL_FRACTION if data.eval_fraction is None else data.eval_fraction)
    else:
        # What is measured are the model's own completions: held-out rows need none.
        scored = choose_columns(raw_eval, data.columns.model_copy(update={"completion": None}))
        train, held = rows, [_row(one, replace(scored, completion=None), data, rewards) for one in raw_eval]
    if imitates:
        _check_completions(train, columns)
    trained_on = {repr(row.prompt) for row in train}
    held = [row for row in held if repr(row.prompt) not in trained_on]
    return Dataset(tuple(train), tuple(held), used, tuple(rewards))


def split(rows: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """(rows to train on, rows held out), both in their order: the same division for every seed and setting.

    At least one row is held out unless `fraction` is 0 or there is only one row.
    """
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1) if fraction else 0
    chosen = set(random.Random("pte/held-out").sample(range(len(rows)), count))
    return [row for i, row in enumerate(rows) if i not in chosen], [rows[i] for i in sorted(chosen)]


def _check_source_settings(data: DataConfig) -> None:
    """Settings that only one kind of source has."""
    source = str(data.source)
    gym = source.startswith(GYM)
    if data.options and not gym:
        raise UsageError(f"data.options = {data.options!r}: only gym:NAME has options")
    if data.subset is not None and (gym or is_local(source)):
        raise UsageError(f"data.subset = {data.subset!r}: only data sets of the hub have subsets")


def _check_eval_settings(data: DataConfig) -> None:
    elsewhere = data.eval_source is not None or data.eval_split is not None
    if elsewhere and data.eval_fraction is not None:
        raise UsageError(
            f"data.eval_fraction = {data.eval_fraction}: the held-out rows come from data.eval_source or "
            "data.eval_split; leave one of them out"
        )
    if elsewhere and (data.eval_source or data.source, data.eval_split) == (data.source, data.split):
        raise UsageError("data.eval_source: the same rows would be trained on and measured on; use another or a split")


def _read_eval(data: DataConfig) -> list[Raw] | None:
    """The rows of the source or split for evaluation; None where a share of the others is held out."""
    source, split_name = data.eval_source, data.eval_split
    if source is None and split_name is None:
        if data.source is None or not data.source.startswith(GYM) or data.eval_fraction is not None:
            return None
        split_name = "eval"
    whole = data.model_copy(update={"limit": None} if source is not None else {})
    return read_rows("data.eval_source", source or str(data.source), "data.eval_split", split_name, whole)


def _default_rewards(data: DataConfig, columns: Columns) -> tuple[str, ...]:
    if data.source is not None and data.source.startswith(GYM):
        return (GYM_REWARD,)
    return (MATH,) if columns.answer is not None else ()


def _check_objective(config: RunConfig, columns: Columns, raw: Sequence[Raw], rewards: Sequence[str]) -> None:
    """Completions where there is something to imitate, rewards where there is something to maximise."""
    names = ", ".join(dict.fromkeys(name for row in raw for name in row.values))
    objective = config.train.objective
    recorded = columns.completion is not None or _ends_with_completion(raw[0].values.get(columns.prompt))
    if "sft" in objective and not recorded:
        raise UsageError(
            f"train.objective = {objective!r}: no column with completions in the data (its columns: {names}); "
            "set data.columns.completion, or train by --objective grpo"
        )
    if "grpo" in objective and not rewards:
        raise UsageError(
            f"train.objective = {objective!r}: no column with answers in the data (its columns: {names}); set "
            "data.columns.answer, or reward.names to a reward that needs none"
        )


def _row(raw: Raw, columns: Columns, data: DataConfig, rewards: Sequence[str]) -> Row:
    prompt = _prompt(raw, columns.prompt)
    completion = None if columns.completion is None else _completion(raw, columns.completion)
    if _ends_with_completion(prompt):
        completion = str(prompt[-1]["content"]) if completion is None else completion
        prompt = prompt[:-1]
    kept = {name: value for name, value in raw.values.items() if name != columns.prompt}
    kept["problem"] = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if columns.answer is not None:
        kept["answer"] = _answer(raw, columns.answer, data.answer_after, checked=MATH in rewards)
    return Row(raw.place, prompt, completion, kept)


def _prompt(raw: Raw, column: str) -> Any:
    """Text that is not blank, or a list of messages."""
    value = _value(raw, column)
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(_is_message(message) for message in value):
        return value
    shown = "blank" if isinstance(value, str) else f"of type {type(value).__name__}" if value != [] else "empty"
    raise UsageError(
        f"data.columns.prompt = {column!r}: {raw.place} is {shown}; use text, or messages with role and content"
    )


def _completion(raw: Raw, column: str) -> str:
    """Text that is not blank; of a list with one message, its text."""
    value = _value(raw, column)
    if isinstance(value, list) and len(value) == 1 and _is_message(value[0]):
        value = value[0]["content"]
    if isinstance(value, str) and value.strip():
        return value
    shown = "blank" if isinstance(value, str) else f"of type {type(value).__name__}"
    raise UsageError(f"data.columns.completion = {column!r}: {raw.place} is {shown}; use text")


def _answer(raw: Raw, column: str, after: str | None, *, checked: bool) -> Any:
    value = _value(raw, column)
    if after is not None:
        if not isinstance(value, str) or after not in value:
            raise UsageError(f"data.answer_after = {after!r}: it is not in column {column!r} of {raw.place}")
        return value.rpartition(after)[2].strip()
    if checked and not isinstance(value, PLAIN_TYPES):
        raise UsageError(
            f"data.columns.answer = {column!r}: {raw.place} is of type {type(value).__name__}; "
            f"{MATH} compares text or numbers"
        )
    return value


def _value(raw: Raw, column: str) -> Any:
    if column not in raw.values:
        raise UsageError(f"{raw.place}: has no {column!r}, which other rows have; its fields: {', '.join(raw.values)}")
    return raw.values[column]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _ends_with_completion(prompt: Any) -> bool:
    """Whether messages end with the model's own: a whole conversation in one column."""
    return (
        isinstance(prompt, list) and len(prompt) > 1 and _is_message(prompt[-1]) and prompt[-1]["role"] == "assistant"
    )


def _check_completions(rows: Sequence[Row], columns: Columns) -> None:
    for row in rows:
        if row.completion is None:
            raise UsageError(f"{row.place}: {columns.prompt!r} does not end with an assistant's message to learn from")
