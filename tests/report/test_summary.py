"""Arms, comparisons and tables of runs whose outcomes we wrote down."""

from __future__ import annotations

import csv
import json

import pytest
from fakes import cell, question, write_run

from pte_cli.errors import PteError
from pte_cli.report.summary import summarize
from pte_cli.report.tables import document, equal_bytes_rows, rows, write_tables
from pte_cli.report.write import write_report


@pytest.fixture
def small(tmp_path):
    """lora_c at 48 and, in an axis, 50 and 60; pte at 48 with states as large as 9 cached tokens."""
    cells = [cell("lora_c", s) for s in (0, 1)] + [cell("pte", s) for s in (0, 1)]
    wide = [cell("lora_c", s, part="window", budget=b, evict_budget=b) for b in (50, 60) for s in (0, 1)]
    for made, right in zip(cells, ([1, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 0, 1]), strict=True):
        write_run(tmp_path, made, right, state=18_000 if made.arm == "pte" else 0)
    for made, right in zip(wide, ([1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]), strict=True):
        write_run(tmp_path, made, right)
    return tmp_path, [*cells, *wide]


def by_name(summary):
    return {arm.name: arm for arm in summary.arms}


def test_means_and_differences(small):
    arms = by_name(summarize(question(*small)))
    assert (arms["main/lora_c"].estimate.mean, arms["main/pte"].estimate.mean) == (0.375, 0.75)
    compared = arms["main/pte"].baseline
    # By seed: (0.75 - 0.25) and (0.75 - 0.5).
    assert (compared.against, compared.difference.mean, compared.difference.n) == ("main/lora_c", 0.375, 2)
    assert compared.difference.low < 0.375 < compared.difference.high
    assert arms["main/lora_c"].baseline is None
    assert arms["window/lora_c/budget=60"].baseline.against == "main/lora_c"
    assert arms["main/pte"].window == 48 - 31


def test_equal_bytes_is_the_smallest_budget_that_takes_as_much(small):
    arms = by_name(summarize(question(*small)))
    # 48 tokens of 2,000 bytes, 18,000 of states and 1,000 of adapter are more than 50 tokens, less than 60.
    assert arms["main/pte"].bytes == 48 * 2000 + 18_000 + 1000
    compared = arms["main/pte"].equal_bytes
    assert (compared.against, compared.bytes) == ("window/lora_c/budget=60", 121_000)
    assert compared.difference.mean == 0.75 - 0.625
    assert arms["main/lora_c"].equal_bytes is None


def test_no_run_of_the_baseline_is_large_enough(small):
    folder, cells = small
    summary = summarize(question(folder, [c for c in cells if c.values.get("evict.budget") != 60]))
    assert by_name(summary)["main/pte"].equal_bytes is None
    assert equal_bytes_rows(summary)[1] == []


def test_an_axis_is_compared_at_its_own_point(tmp_path):
    cells = [cell(arm, part="frac", evict_frac=f) for arm in ("lora_c", "pte") for f in (0.5, 1.0)] + [cell("lora_c")]
    for made in cells:
        write_run(tmp_path, made, [1, 0])
    arms = by_name(summarize(question(tmp_path, cells)))
    assert arms["frac/pte/frac=0.5"].baseline.against == "frac/lora_c/frac=0.5"
    assert arms["frac/lora_c/frac=0.5"].baseline.against == "main/lora_c"


def test_one_run_has_no_interval_in_any_table(tmp_path):
    cells = [cell("lora_c"), cell("pte")]
    for made in cells:
        write_run(tmp_path, made, [1, 0])
    headings, body = rows(summarize(question(tmp_path, cells)), "main")
    assert headings[1:4] == ["accuracy, %", "n", "minus lora_c"]
    assert body[1][1:4] == ["50.0 (n = 1: no interval)", "1", "+0.0 (n = 1: no interval)"]


def test_equal_runs_count_once(tmp_path):
    """An evaluation of the model as it is does not depend on the seed: its cells are one run."""
    cells = [cell("baseline", seed, bare=True) for seed in range(3)]
    write_run(tmp_path, cells[0], [1, 0])
    [arm] = summarize(question(tmp_path, cells, baseline=None)).arms
    assert (arm.estimate.n, arm.planned, arm.estimate.low) == (1, 1, None)


def test_runs_that_are_missing_are_counted(tmp_path):
    cells = [cell("pte", seed) for seed in range(3)]
    write_run(tmp_path, cells[1], [1, 0])
    summary = summarize(question(tmp_path, cells, baseline=None))
    assert (summary.finished, summary.planned) == (1, 3)
    assert rows(summary, "main")[1][0][2] == "1 of 3"


def test_only_what_is_shown_is_shown_and_compared_with_the_rest(small):
    folder, cells = small
    summary = summarize(question(folder, cells, shown=frozenset({"main/pte"})))
    assert [arm.name for arm in summary.arms] == ["main/pte"]
    assert summary.arms[0].baseline.against == "main/lora_c"
    assert (summary.finished, summary.planned) == (2, 2)


def test_the_metric_and_the_goal_choose_the_best(small):
    best = summarize(question(*small, goal="min")).best("main")
    assert best.name == "main/lora_c"
    lengths = summarize(question(*small, metric="mean_length"))
    assert rows(lengths, "main")[0][1] == "mean_length"
    assert rows(lengths, "main")[1][0][1] == "32.0 (32.0 to 32.0)"


def test_the_files(small, tmp_path):
    folder, cells = small
    summary = summarize(question(folder, cells))
    write_tables(summary, tmp_path)
    whole = json.loads((tmp_path / "report.json").read_text())
    assert whole == document(summary)
    assert whole["arms"][0]["runs"] == {"0": "train-main-lora_c-0", "1": "train-main-lora_c-1"}
    with (tmp_path / "arms.csv").open(newline="") as file:
        arms = {row["name"]: row for row in csv.DictReader(file)}
    assert float(arms["main/pte"]["baseline_mean"]) == 0.375
    assert arms["main/pte"]["equal_bytes_against"] == "window/lora_c/budget=60"
    assert arms["window/lora_c/budget=60"]["values"] == "evict.budget=60"
    with (tmp_path / "runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 8
    assert [float(row["accuracy"]) for row in runs[:2]] == [0.25, 0.5]


def test_nothing_finished_is_said_so(tmp_path):
    with pytest.raises(PteError, match="nothing to report; no run is finished"):
        write_report(question(tmp_path, [cell("pte")]), tmp_path / "report")


def test_a_run_without_its_problems_is_said_so(tmp_path):
    made = cell("pte")
    write_run(tmp_path, made, [1])
    (tmp_path / "runs" / made.key / "held_out.jsonl").unlink()
    with pytest.raises(PteError, match=r"has no held_out.jsonl"):
        summarize(question(tmp_path, [made]))
