"""What the pictures show, and the page they are in."""

from __future__ import annotations

import re
import struct

import pytest
from fakes import cell, question, whole_sweep, write_run

from pte_cli.report import write
from pte_cli.report.plots import can_draw
from pte_cli.report.series import SMOOTHING, length_bins, pictures, smooth
from pte_cli.report.summary import summarize

needs_matplotlib = pytest.mark.skipif(not can_draw(), reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return question(folder, whole_sweep(folder, seeds=3, problems=40))


def test_there_are_pictures_of_all_four_kinds(sweep):
    shown = {picture.name: picture for picture in pictures(summarize(sweep))}
    assert list(shown) == ["learning-sft-loss", "window-window", "length-length", "memory"]
    assert [line.arm for line in shown["learning-sft-loss"].lines] == ["lora", "lora_c", "ttt", "pte"]
    window = {line.arm: [point.x for point in line.points] for line in shown["window-window"].lines}
    assert window == {"lora_c": [8, 12, 26, 32], "pte": [8, 12, 26, 32]}
    length = {line.arm: [point.x for point in line.points] for line in shown["length-length"].lines}
    assert length == {"lora_c": [16, 24, 32], "pte": [16, 24, 32]}
    memory = {line.arm: len(line.points) for line in shown["memory"].lines}
    assert memory == {"baseline": 1, "lora": 1, "lora_c": 5, "ttt": 1, "pte": 5}


def test_a_learning_curve_is_the_mean_over_seeds_of_means_over_steps(tmp_path):
    cells = [cell("pte", seed) for seed in (0, 1)]
    for made, losses in zip(cells, ([1.0] * SMOOTHING + [3.0], [2.0] * SMOOTHING + [5.0]), strict=True):
        write_run(tmp_path, made, [1], losses=losses)
    first = pictures(summarize(question(tmp_path, cells, baseline=None)))[0]
    assert [(point.x, point.mean) for point in first.lines[0].points] == [(SMOOTHING, 1.5), (SMOOTHING + 1, 4.0)]
    assert first.band


def test_smoothing_takes_what_there_is():
    assert smooth({1: 1.0, 2: 3.0, 3: 8.0}, width=2) == {2: 2.0, 3: 8.0}


def test_completions_are_grouped_by_length(tmp_path):
    made = cell("pte")
    write_run(tmp_path, made, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0], lengths=[10, 10, 11, 11, 20, 21, 22, 30, 31, 32])
    [arm] = summarize(question(tmp_path, [made], baseline=None)).arms
    points = length_bins(arm).points
    # Fifths begin at 11, 20, 22 and 31 tokens.
    assert [point.x for point in points] == [10, 11, 20.5, 26, 31.5]
    assert [point.mean for point in points] == [1, 0.5, 0, 0, 0]


def test_a_lone_short_completion_is_no_group(tmp_path):
    made = cell("pte")
    write_run(tmp_path, made, [0] + [1] * 150, lengths=[10] + [32] * 150)
    [arm] = summarize(question(tmp_path, [made], baseline=None)).arms
    assert [(point.x, point.mean) for point in length_bins(arm).points] == [(32, 1)]


@needs_matplotlib
def test_the_page_needs_nothing_else(sweep, tmp_path):
    written = write.write_report(sweep, tmp_path / "report")
    html = written.page.read_text()
    assert html.count("data:image/png;base64,") == 4
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert "http" not in html
    for text in ("main", "window", "lora_c/budget=39", "at equal bytes", "n = 1: no interval"):
        assert text in html
    for file in written.files:
        if file.suffix == ".png":
            head = file.read_bytes()[:24]
            assert head[:8] == b"\x89PNG\r\n\x1a\n"
            assert struct.unpack(">II", head[16:]) == (864, 528)


@needs_matplotlib
def test_the_same_runs_give_the_same_files(sweep, tmp_path):
    first, again = (write.write_report(sweep, tmp_path / name).files for name in ("a", "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]


def test_without_matplotlib_there_is_a_page_without_pictures(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "can_draw", lambda: False)
    (tmp_path / "old.png").write_bytes(b"")
    written = write.write_report(sweep, tmp_path)
    assert not written.drawn
    assert "<img" not in written.page.read_text()
    assert not list(tmp_path.glob("*.png"))


def test_names_are_escaped(tmp_path):
    made = cell("<b>pte")
    write_run(tmp_path, made, [1])
    page = write.write_report(question(tmp_path, [made], baseline=None), tmp_path / "r").page.read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;pte" in page
