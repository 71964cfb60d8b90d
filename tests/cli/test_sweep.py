"""`pte sweep`: plans, refusals, and a tiny sweep from the first run to the report, killed and resumed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import pte

from pte_cli.cli.queue_view import running_line, running_table, summary_line
from pte_cli.config import RunConfig
from pte_cli.report.cells import Cell
from pte_cli.sweep.plan import Task
from pte_cli.sweep.progress import Progress
from pte_cli.sweep.queue import Running, Standing
from pte_cli.sweep.state import Where

ROOT = Path(__file__).parent.parent.parent
TINY = """
schema = 1
[sweep]
name = "tiny"
seeds = [0, 1]
threads = 1
baseline = "lora_c"
[defaults]
eval.problems = 16
sft.steps = 3
sft.batch = 4
[runs.base]
command = "eval"
[runs.lora_c]
encoder.name = "none"
"""
COMMAND = [sys.executable, "-m", "pte_cli", "sweep", "tiny.toml"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def sweep(folder, *arguments):
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def states(folder, name="tiny"):
    """The state of every run of a sweep, as `--dry-run` tells it."""
    plan = json.loads(pte("sweep", "tiny.toml", "--dry-run", "--json", "--out", f"runs/{name}", cwd=folder).stdout)
    return {run["cells"][0] + str(run["seeds"]): run["state"] for run in plan["runs"]}


def report(folder, name="tiny"):
    """The report without what depends on the machine."""
    found = json.loads((folder / "runs" / name / "report" / "report.json").read_text())
    for arm in found["arms"]:
        del arm["machine"]
    return found


def test_the_shipped_file_can_be_planned(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # GNU readline sets one where a test imports it
    done = pte("sweep", str(ROOT / "experiments.toml"), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("main/pte", "window/lora_c/budget=39", "policy/pte/policy=importance,encoder=ttt"):
        assert name in done.stdout
    assert list(tmp_path.iterdir()) == []
    main = json.loads(pte("sweep", str(ROOT / "experiments.toml"), "--dry-run", "--json", "--only", "main",
                          cwd=tmp_path).stdout)  # fmt: skip
    assert (main["todo"], len(main["runs"])) == (22, 22)
    assert {run["state"] for run in main["runs"]} == {"new"}


def test_a_plan_says_which_cells_share_a_run(folder):
    done = pte("sweep", "tiny.toml", "--dry-run", cwd=folder)
    lines = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines()]
    assert ["main/base", "eval", "0 1", "1", "1 new"] in lines
    assert ["main/lora_c", "train", "0 1", "2", "2 new"] in lines
    assert "3 runs: 3 new; 3 to do" in done.stdout


def test_planning_needs_no_torch(folder):
    code = (
        "import sys; from pte_cli.cli.app import app; app(['sweep', 'tiny.toml', '--dry-run'], standalone_mode=False); "
    )
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny.toml", "--rerun", "some"], "--rerun 'some': must be 'failed' or 'all'"),
        (["tiny.toml", "--only", "x*"], "--only 'x*': matches no run of tiny.toml"),
        (["none.toml"], "none.toml: can't be read"),
        (["broken.toml"], "broken.toml: Invalid value (at line 1, column 9)"),
        (["taken.toml", "--out", "taken.toml/x"], "--out 'taken.toml/x': "),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(folder, arguments, message):
    (folder / "broken.toml").write_text("schema =\n")
    (folder / "taken.toml").write_text(TINY)
    done = pte("sweep", *arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


def test_settings_from_the_environment_are_refused(folder, monkeypatch):
    monkeypatch.setenv("PTE_EVICT__BUDGET", "60")
    done = pte("sweep", "tiny.toml", "--dry-run", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "error: PTE_EVICT__BUDGET: is set, and a sweep's settings come from its file alone; unset it\n"
    )


def test_the_queue_says_where_it_stands(tmp_path):
    cell = Cell("main", "pte", {}, 3, 48, "train-x")
    config = RunConfig.model_validate({"sft": {"steps": 500}})
    task = Task("train-x", "train", config, (cell,), Where(tmp_path, "train-x"), "new", None, True)
    running = Running(task, None, 0, 1, 0.0, Progress(120, ("loss", 0.4123), 600 * 2**20))
    standing = Standing([task] * 6, [running], [task] * 12, {"a": "why"}, [], 34 * 60.0)
    assert running_line(running) == "main/pte, seed 3: 120/500, loss 0.412, 600 MiB"
    assert summary_line(standing) == "12 done, 1 running, 1 failed, 6 waiting, about 34 min left"
    assert summary_line(Standing(finished=[task], seconds_left=0.0)) == "1 done, 0 running, 0 failed, 0 waiting"
    table = running_table(standing)
    assert [next(iter(column.cells)) for column in table.columns][:4] == [
        "main/pte, seed 3", "120/500", "loss 0.412", "600 MiB",
    ]  # fmt: skip


def test_a_report_of_nothing_is_refused(folder):
    done = pte("sweep", "tiny.toml", "--report-only", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing to report; no run is finished" in done.stderr


@pytest.mark.slow
def test_a_killed_sweep_resumes_to_the_identical_report(folder):
    """Killed with its run in the middle of it, then interrupted in the next one; against one that was left alone."""

    def started(count):
        """A sweep, once `count` of its runs have begun to train."""
        process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)  # fmt: skip
        deadline = time.monotonic() + 120
        while len(list(folder.glob("runs/tiny/runs/train-*/metrics.jsonl"))) < count and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        return process

    (folder / "tiny.toml").write_text(
        TINY.replace('[runs.base]\ncommand = "eval"\n', "").replace("steps = 3", "steps = 20")
    )
    alone = sweep(folder, "--out", "runs/alone", "--json")
    assert alone.returncode == 0, alone.stderr
    document = json.loads(alone.stdout)
    assert (document["finished"], document["planned"], len(document["queue"]["finished"])) == (2, 2, 2)

    killed = started(1)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    interrupted = started(2)
    interrupted.send_signal(signal.SIGINT)
    _, stderr = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert stderr.splitlines()[-2:] == ["the same command goes on from here", "interrupted"]
    # What was killed went on and was waited for; what was interrupted is left to be resumed.
    assert states(folder) == {"main/lora_c[0]": "finished", "main/lora_c[1]": "interrupted"}
    resumed = sweep(folder)
    assert resumed.returncode == 0, resumed.stderr
    assert (resumed.stderr.count("started "), resumed.stderr.count("resumed ")) == (0, 1)
    assert report(folder) == report(folder, "alone")
    again = sweep(folder)
    assert again.returncode == 0
    assert "2 finished; 0 to do" in again.stderr
    assert report(folder) == report(folder, "alone")

    done = pte("sweep", "tiny.toml", "--report-only", cwd=folder)
    assert done.returncode == 0
    [row] = [line.split("│") for line in done.stdout.splitlines() if line.strip().startswith("lora_c")]
    assert row[2].strip() == "2"
    lines = (next((folder / "runs" / "tiny" / "runs").glob("train-*")) / "held_out.jsonl").read_text().splitlines()
    assert len(lines) == 16
    assert set(json.loads(lines[0])) == {
        "problem", "prompt", "prompt_tokens", "right", "reward", "length", "finish", "evictions",
    }  # fmt: skip


def test_some_failed_is_exit_3_and_the_others_are_done(folder):
    """One run's data has no prompts, which only shows once they are read."""
    broken = TINY.replace("seeds = [0, 1]", "seeds = [0]") + '[runs.data]\ndata.source = "rows.jsonl"\n'
    (folder / "tiny.toml").write_text(broken)
    (folder / "rows.jsonl").write_text('{"nothing": "1"}\n')
    done = sweep(folder, "--only", "main/base", "--only", "main/data", "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert [arm["name"] for arm in document["arms"]] == ["main/base"]
    [(name, reason)] = document["queue"]["failed"].items()
    assert name == "main/data, seed 0"
    assert reason.startswith("error: ")
    again = pte("sweep", "tiny.toml", "--only", "main/data", cwd=folder)
    assert again.returncode == 3
    assert "failed earlier and left so: 1; --rerun failed tries them again" in again.stderr
    assert "started" not in again.stderr


def test_slurm_jobs_of_one_machine(folder):
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'pte-cli[slurm]'")
    launch = 'launch = { engine = "slurm", options = { cluster = "local" } }\n[defaults]'
    (folder / "tiny.toml").write_text(TINY.replace("[defaults]", launch))
    done = sweep(folder, "--only", "main/base")
    assert done.returncode == 0, done.stderr
    assert "finished  main/base, seed 0, held-out accuracy" in done.stderr
    assert (folder / "slurm").is_dir()
    assert os.listdir(folder / "runs" / "tiny" / "logs") != []
