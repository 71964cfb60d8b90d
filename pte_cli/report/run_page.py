"""The report of one run: its results, curves, completions with what had left the cache, settings and environment."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pte_cli.errors import PteError
from pte_cli.report.page import render
from pte_cli.report.plots import MISSING, can_draw, draw
from pte_cli.report.run_curves import run_pictures
from pte_cli.report.runs import RunView, as_text, changed_settings, settings
from pte_cli.runs import RunDir

Row = list[str]
SHADES = 10
"""Steps of shading between a token that was in the cache everywhere and one that was nowhere."""


@dataclass(frozen=True)
class Shown:
    """A token of a completion. shade: 0 (held everywhere) to `SHADES` (nowhere). tip: when it left."""

    text: str
    shade: int
    tip: str


@dataclass(frozen=True)
class Sample:
    """A completion as the page shows it."""

    title: str
    note: str
    prompt: Sequence[Shown]
    thinking: Sequence[Shown]
    answer: Sequence[Shown]


def write_run_report(run: RunView, file: Path) -> bool:
    """Write the page; whether it has pictures, for which matplotlib must be there. PteError where it can't be written.

    The same run gives the same page.
    """
    drawn = can_draw()
    with tempfile.TemporaryDirectory() as folder:
        shown = run_pictures(run) if drawn else []
        # The styles of a page go by name: each picture is drawn alone, so that its first line has the first colour.
        images = [(picture.title, draw([picture], Path(folder))[0]) for picture in shown]
        html = render(
            "run.html",
            images,
            title=f"pte run {run.name}",
            notes=notes(run) + ([] if drawn else [MISSING]),
            results=results(run),
            memory=memory(run),
            samples=[sample(record) for record in run.samples],
            shades=range(SHADES + 1),
            changed=[[name, as_text(was), as_text(now)] for name, (was, now) in changed_settings(run.config).items()],
            settings=[[name, as_text(value)] for name, value in settings(run.config).items()],
            environment=environment(run.path),
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(html, encoding="utf-8")
    except OSError as error:
        raise PteError(f"{file}: can't be written ({error.strerror})") from None
    return drawn


def notes(run: RunView) -> list[str]:
    """What the run is, in a few lines."""
    config = run.config
    bound = f"budget {config.evict.budget}, frac {config.evict.frac:g}"
    lines = [
        f"{run.what()} of {config.model.name}, encoder {config.encoder.name}, eviction {config.evict.policy} ({bound})",
        f"{run.state} after {run.step} of {run.steps} steps, seed {config.seed}"
        if run.steps
        else f"{run.state}, of {run.result.get('adapter') or 'the model as it is'}",
        f"settings {config.identity()}",
    ]
    if error := run.status.get("error"):
        lines.append(str(error))
    return lines


def results(run: RunView) -> list[Row]:
    """Held-out accuracy before and after; a row has a name and two cells."""
    columns = [run.before, run.after]
    rows: list[Row] = []
    for name, show in RESULTS.items():
        cells = [show(column) if column else "" for column in columns]
        if any(cells):
            rows.append([name, *cells])
    return rows


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


RESULTS = {
    "accuracy (95 % interval over problems)": lambda a: (
        f"{percent(a['accuracy'])} ({100 * a['low']:.1f} to {100 * a['high']:.1f})"
    ),
    "single queries right": lambda a: percent(a.get("queries")),
    "mean reward": lambda a: "" if a.get("reward") is None else f"{a['reward']:.3f}",
    "problems": lambda a: str(a["n"]),
    "could not be graded": lambda a: str(a.get("ungraded") or ""),
    "mean length, tokens": lambda a: f"{a['mean_length']:.1f}",
    "cut off at the limit": lambda a: percent(a["clipped_ratio"]),
    "evictions per sequence": lambda a: f"{a['evictions']:.1f}",
    "tokens per second": lambda a: f"{a['tokens_per_second']:.0f}",
}


def memory(run: RunView) -> list[Row]:
    """What was held, in bytes."""
    after = run.after or run.before
    rows = after.get("rows", 0)
    last = run.last
    sizes = {
        f"KV cache of {rows} sequences": after.get("cache_bytes"),
        f"encoder states of {rows} sequences": after.get("state_bytes"),
        "adapter": after.get("adapter_bytes"),
        "peak of the process": run.result.get("peak_bytes") or last.get("peak_bytes"),
        "peak on the device": last.get("device_bytes"),
    }
    return [[name, f"{size:,}", f"{size / 2**20:.2f}"] for name, size in sizes.items() if size]


def environment(path: Path) -> list[Row]:
    """env.json as rows."""
    found: Mapping[str, Any] = RunDir(path).read_json("env.json") or {}
    packages = found.get("packages") or {}
    command = " ".join(map(str, found.get("command") or ()))
    rows = [["command", command], *([name, found.get(name)] for name in ("time", "python", "platform", "cpus"))]
    rows += [[name, number or "not installed"] for name, number in packages.items()]
    return [[str(name), str(value)] for name, value in rows if value not in (None, "")]


# ---- completions --------------------------------------------------------------------------------------------


def sample(record: Mapping[str, Any]) -> Sample:
    """A recorded completion (eval/samples.py), shaded as the cache was when its answer began."""
    start, answer = record["prompt_tokens"], record["answer"]
    tokens = [
        Shown(text, round(SHADES * (1 - held(left, answer))), tip(i - start, left))
        for i, (text, left) in enumerate(zip(record["tokens"], record["left"], strict=True))
    ]
    thinking, said = tokens[start : start + answer], [Shown(t.text, 0, t.tip) for t in tokens[start + answer :]]
    steps = sorted({step for left in record["left"] for step, _ in left})
    gone = sum(token.shade == SHADES for token in thinking)
    partly = sum(0 < token.shade < SHADES for token in thinking)
    outcome = {True: "right", False: "wrong", None: "not graded"}[record["right"]]
    ended = "" if record["finish"] == "stop" else ", cut off at the token limit"
    return Sample(
        f"problem {record['problem']}: {outcome}{ended}",
        f"{start} prompt tokens, {len(tokens) - start} written; {budget(record)}. When the answer began, {gone} of "
        f"{len(thinking)} thinking tokens had left the cache"
        + (f" and {partly} more had left some layers or heads" if partly else "")
        + (f". Evictions after {listed(steps)} thinking tokens." if steps else "."),
        tokens[:start],
        thinking,
        said,
    )


def held(left: Sequence[Sequence[float]], token: int) -> float:
    """The share of layers and heads that held a token when thinking token number `token` (from 0) was written.

    Before it was written the model had been fed `token` thinking tokens; an eviction after that many comes later.
    """
    return 1 - sum(share for step, share in left if step < token)


def tip(index: int, left: Sequence[Sequence[float]]) -> str:
    """`thinking token 3: left after 17 thinking tokens`; index below 0: a token of the prompt."""
    name = f"thinking token {index + 1}" if index >= 0 else "prompt"
    if not left:
        return f"{name}: never left"
    whole = len(left) == 1 and left[0][1] == 1
    times = ", ".join(f"{step}" if whole else f"{step} ({100 * share:.0f} %)" for step, share in left)
    return f"{name}: left after {times} thinking tokens" + ("" if whole else ", share of layers and heads")


def budget(record: Mapping[str, Any]) -> str:
    return "nothing is ever evicted" if record["budget"] is None else f"budget {record['budget']} tokens"


def listed(steps: Sequence[float], most: int = 12) -> str:
    """`17, 21, 25`; of many the first and how many more."""
    shown = ", ".join(str(step) for step in steps[:most])
    return shown if len(steps) <= most else f"{shown} and {len(steps) - most} more"
