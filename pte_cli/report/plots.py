"""Pictures as PNG files, drawn by matplotlib (`pip install 'pte-cli[plots]'`)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pte_cli.report.series import Line, Picture

COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#64b5cd")
MARKERS = "osD^vP*X"
MISSING = "no pictures: matplotlib is not installed; pip install 'pte-cli[plots]'"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """One PNG for each picture. An arm has the same colour in all of them."""
    names = list(dict.fromkeys(line.arm for picture in pictures for line in picture.lines))
    styles = {name: (COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}
    return [draw_one(picture, folder / f"{picture.name}.png", styles) for picture in pictures]


def draw_one(picture: Picture, file: Path, styles: Mapping[str, tuple[str, str]]) -> Path:
    """`picture` as a PNG; bands or bars are the points' intervals, where they have one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for line in picture.lines:
        (_band if picture.band else _bars)(axes, line, picture.scale, *styles[line.arm])
    axes.set(title=picture.title, xlabel=picture.x, ylabel=picture.y)
    if picture.log and any(point.mean > 0 for line in picture.lines for point in line.points):
        axes.set_yscale("log")
    if not picture.band:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    figure.text(0.995, 0.005, _small_print(picture), ha="right", va="bottom", fontsize=7, color="#666666")
    figure.savefig(file)
    return file


def _band(axes: Any, line: Line, scale: float, color: str, _marker: str) -> None:
    xs = [point.x for point in line.points]
    shown = {"linewidth": 0.8, "alpha": 0.45} if line.faint else {"linewidth": 1.6}
    mark = "o" if len(xs) == 1 else None
    axes.plot(xs, [scale * point.mean for point in line.points], color=color, label=line.arm, marker=mark, **shown)
    if all(point.low is not None for point in line.points):
        axes.fill_between(
            xs,
            [scale * point.low for point in line.points],
            [scale * point.high for point in line.points],
            color=color,
            alpha=0.18,
            linewidth=0,
        )


def _bars(axes: Any, line: Line, scale: float, color: str, marker: str) -> None:
    means = [scale * point.mean for point in line.points]
    # NaN draws no bar: one run has no interval.
    below = [m - scale * p.low if p.low is not None else math.nan for m, p in zip(means, line.points, strict=True)]
    above = [scale * p.high - m if p.high is not None else math.nan for m, p in zip(means, line.points, strict=True)]
    axes.errorbar(
        [point.x for point in line.points],
        means,
        yerr=[below, above],
        color=color,
        marker=marker,
        markersize=5,
        linewidth=1.4,
        capsize=3,
        label=line.arm,
    )


def _small_print(picture: Picture) -> str:
    if picture.note is not None:
        return picture.note
    if any(point.low is not None for line in picture.lines for point in line.points):
        return "95 % intervals over seeds"
    return "one seed: no intervals"
