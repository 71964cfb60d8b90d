"""What a run leaves behind besides its adapter: trackers' files and tables of completions."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest
from running import pte

SMALL = ["--problems", "4", "--set", "grpo.prompts=6", "--set", "grpo.group_size=4",
         "--set", "sampling.temperature=1.5", "--set", "train.completions_every=2"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked")
    done = pte("train", "--objective", "grpo", "--grpo-steps", "3", "--track", "tensorboard", *SMALL, "--out", "run",
               cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_tensorboard_has_the_numbers_of_metrics_jsonl(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = run.glob("pte/events*")
    events = EventAccumulator(str(file.parent))
    events.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss", "reward", "gap/max", "completions/mean_length", "encoder/update_share", "learning_rate"):
        logged = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines if name in line]
        assert logged == expected, name


def test_the_tables_hold_what_was_sampled(run):
    assert [file.name for file in sorted((run / "completions").iterdir())] == [
        "step-000001.parquet", "step-000003.parquet",
    ]  # fmt: skip
    rows = pyarrow.parquet.read_table(run / "completions" / "step-000001.parquet").to_pylist()
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert len(rows) == 24
    assert sum(row["reward"] for row in rows) / 24 == pytest.approx(line["reward"])
    assert sum(row["tokens"] for row in rows) / 24 == line["completions/mean_length"]
    assert {row["finish"] for row in rows} <= {"stop", "length"}
    assert rows[0]["prompt"].startswith("? ")
    assert rows[0]["prompt"] == rows[3]["prompt"] != rows[4]["prompt"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--track", "wandb"], "train.trackers = 'wandb': "),
        (["--track", "nonsense"], "must be 'tensorboard', 'trackio' or 'wandb'"),
        (
            ["--grad", "exact", "--encoder", "ttt", "--set", "encoder.objective=nll"],
            "train.gradient = 'exact': encoder.name = 'ttt' with these options learns from a gradient of its own",
        ),
        (
            ["--loss-type", "gspo", "--set", "grpo.delta=2"],
            "grpo.delta = 2.0: has no meaning for grpo.loss_type = 'gspo'",
        ),
        (
            ["--loss-type", "ppo"],
            "grpo.loss_type = 'ppo': must be 'grpo', 'dr_grpo', 'dapo', 'bnpo', 'gspo' or 'cispo'",
        ),
    ],
)
def test_what_is_refused(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = pte("train", *arguments, "--out", "run", cwd=tmp_path)
    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "run").exists()
