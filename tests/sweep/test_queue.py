"""The queue with runs that are small scripts: order, slots, retries, failures, what a killed sweep leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from pte_cli.config import RunConfig
from pte_cli.registry import build, load_registry
from pte_cli.report.cells import Cell
from pte_cli.sweep.command import start_command
from pte_cli.sweep.guard import BUSY
from pte_cli.sweep.plan import Task
from pte_cli.sweep.progress import last_record, progress_of
from pte_cli.sweep.queue import Queue
from pte_cli.sweep.slots import devices, slot_environments
from pte_cli.sweep.state import Where, locked, resumable, set_aside, state_of, sweep_lock

RUN = """
import json, os, pathlib, sys, time
run, then = pathlib.Path(sys.argv[1]), sys.argv[2]
run.mkdir(parents=True, exist_ok=True)
with (run.parent / "order").open("a") as order:
    order.write(run.name + " " + os.environ["SLOT"] + "\\n")
while then == "fail-beside" and not (run.parent / "a" / "status.json").exists():
    time.sleep(0.02)
if then in ("fail", "fail-beside") or (then == "once" and not (run / "tried").exists()):
    (run / "tried").touch()
    sys.exit("no such luck")
if then == "crash":
    os.kill(os.getpid(), 9)
(run / "status.json").write_text('{"state": "running"}')
time.sleep(60 if then == "hang" else 0.05)
(run / "status.json").write_text('{"state": "finished", "result": {"after": {"accuracy": 0.5}, "peak_bytes": 7}}')
"""


class Lines:
    """A view that remembers."""

    def __init__(self):
        self.lines, self.running = [], 0

    def event(self, line):
        self.lines.append(" ".join(line.split()))

    def update(self, standing):
        self.running = max(self.running, len(standing.running))


def task(folder, key, after=None, state="new", todo=True):
    cell = Cell("main", key, {}, 0, 48, key)
    return Task(key, "train", RunConfig(), (cell,), Where(folder, key), state, after, todo)


def guarded(task, then="work"):
    return [sys.executable, "-m", "pte_cli.sweep.guard", str(task.where.lock), sys.executable, "-c", RUN,
            str(task.where.run), then]  # fmt: skip


def queue(tasks, behave=None, jobs=1, **more):
    behave = behave or {}
    slots = [{"SLOT": str(i)} for i in range(jobs)]
    local = build(load_registry().launcher("local"), {})
    return Queue(
        tasks, local, lambda t: guarded(t, behave.get(t.key, "work")), slots, Lines(), poll_seconds=0.02, **more
    )


def order(folder):
    return [line.split() for line in (folder / "runs" / "order").read_text().splitlines()]


def wait(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_runs_are_worked_off_in_order_and_finished_ones_left_alone(tmp_path):
    work = queue([task(tmp_path, "a"), task(tmp_path, "b", state="finished", todo=False), task(tmp_path, "c")])
    standing = work.run()
    assert [t.key for t in standing.finished] == ["a", "c"]
    assert order(tmp_path) == [["a", "0"], ["c", "0"]]
    assert work.view.lines[:2] == ["started main/a, seed 0", "finished main/a, seed 0, held-out accuracy 0.500"]
    assert standing.seconds_left == 0


def test_as_many_run_at_once_as_there_are_slots(tmp_path):
    work = queue([task(tmp_path, key) for key in "abcd"], jobs=2)
    assert len(work.run().finished) == 4
    assert work.view.running == 2
    assert {slot for _, slot in order(tmp_path)} == {"0", "1"}


def test_a_run_waits_for_the_one_it_measures(tmp_path):
    work = queue([task(tmp_path, "b", after="a"), task(tmp_path, "a"), task(tmp_path, "c")], jobs=2)
    work.run()
    assert {name for name, _ in order(tmp_path)[:2]} == {"a", "c"}
    assert order(tmp_path)[2][0] == "b"


def test_a_failed_run_does_not_stop_the_others_but_those_that_measure_it(tmp_path):
    tasks = [task(tmp_path, "a"), task(tmp_path, "b", after="a"), task(tmp_path, "c"), task(tmp_path, "d")]
    standing = queue(tasks, {"a": "fail", "c": "crash"}).run()
    assert [t.key for t in standing.finished] == ["d"]
    assert standing.failed["main/a, seed 0"] == "no such luck"
    assert standing.failed["main/c, seed 0"] == "ended by signal 9 (out of memory?)"
    assert [t.key for t in standing.skipped] == ["b"]
    assert [state_of(t.where) for t in tasks] == ["failed", "new", "failed", "finished"]


def test_a_failed_run_is_tried_again_as_often_as_asked(tmp_path):
    work = queue([task(tmp_path, "a"), task(tmp_path, "b")], {"a": "once", "b": "fail"}, retries=1)
    standing = work.run()
    assert [t.key for t in standing.finished] == ["a"]
    assert [name for name, _ in order(tmp_path)] == ["a", "a", "b", "b"]
    assert "failed main/a, seed 0: no such luck; trying again" in work.view.lines
    assert "started main/a, seed 0, try 2" in work.view.lines


def test_fail_fast_stops_what_runs_and_starts_nothing_more(tmp_path):
    tasks = [task(tmp_path, key) for key in "abc"]
    began = time.monotonic()
    standing = queue(tasks, {"a": "hang", "b": "fail-beside"}, jobs=2, fail_fast=True).run()
    assert time.monotonic() - began < 20
    assert list(standing.failed) == ["main/b, seed 0"]
    assert {t.key for t in standing.skipped} == {"a", "c"}
    assert [state_of(t.where) for t in tasks] == ["interrupted", "failed", "new"]


def test_interrupted_it_stops_its_runs_and_they_are_not_failed(tmp_path):
    class Interrupt(Lines):
        def update(self, standing):
            if standing.running and (standing.running[0].task.where.run / "status.json").exists():
                raise KeyboardInterrupt

    hanging = task(tmp_path, "a")
    work = queue([hanging], {"a": "hang"})
    work.view = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert state_of(hanging.where) == "interrupted"
    assert not locked(hanging.where.lock)


def test_a_run_that_a_killed_sweep_left_at_work_is_waited_for(tmp_path):
    left = task(tmp_path, "a")
    orphan = subprocess.Popen(guarded(left), env={**os.environ, "SLOT": "x"})
    wait(lambda: locked(left.where.lock) or orphan.poll() is not None)
    work = queue([left, task(tmp_path, "b")])
    if state_of(left.where) == "running":
        standing = work.run()
        assert [t.key for t in standing.finished] == ["a", "b"] or [t.key for t in standing.finished] == ["b", "a"]
        assert [name for name, _ in order(tmp_path)].count("a") == 1
        assert "waiting main/a, seed 0: still at work since an earlier sweep" in work.view.lines
    orphan.wait()


def test_two_processes_never_work_on_one_run(tmp_path):
    hanging = task(tmp_path, "a")
    first = subprocess.Popen(guarded(hanging, "hang"), env={**os.environ, "SLOT": "x"})
    try:
        wait(lambda: state_of(hanging.where) == "running")
        second = subprocess.run(guarded(hanging), capture_output=True, text=True, check=False)
        assert second.returncode == BUSY
        assert "another process is at work on this run" in second.stderr
    finally:
        first.kill()
        first.wait()
    assert not locked(hanging.where.lock)
    wait(lambda: (hanging.where.run / "status.json").exists())
    assert state_of(hanging.where) == "interrupted"


def test_one_sweep_at_a_time_in_a_folder(tmp_path):
    from pte_cli.errors import UsageError

    with (
        sweep_lock(tmp_path / "s"),
        pytest.raises(UsageError, match="another `pte sweep` is at work here"),
        sweep_lock(tmp_path / "s"),
    ):
        pass


def test_an_interrupted_run_goes_on_only_where_it_has_a_checkpoint(tmp_path):
    interrupted = task(tmp_path, "train-a")
    where = interrupted.where
    where.run.mkdir(parents=True)
    (where.run / "status.json").write_text('{"state": "running", "step": 3}')
    (where.run / "checkpoints").mkdir()
    assert resumable(where)
    assert start_command(interrupted)[-4:] == ["train", "--resume", str(where.run), "--json"]
    assert "--resume" not in start_command(interrupted, rerun="all")
    assert not where.run.exists()
    assert (tmp_path / "runs" / "train-a.1" / "checkpoints").is_dir()
    where.run.mkdir()
    assert not resumable(where)
    command = start_command(interrupted)
    assert command[command.index("pte_cli") + 1 :] == [
        "train", "--config", str(where.config), "--out", str(where.run), "--json",
    ]  # fmt: skip
    assert (tmp_path / "runs" / "train-a.2").is_dir()
    assert json.loads(where.config.read_text())["seed"] == 0
    assert "out" not in json.loads(where.config.read_text())


def test_a_finished_run_has_nothing_to_go_on_with(tmp_path):
    where = Where(tmp_path, "a")
    (where.run / "checkpoints").mkdir(parents=True)
    (where.run / "status.json").write_text('{"state": "finished"}')
    assert not resumable(where)


def test_what_measures_a_run_is_started_on_its_folder(tmp_path):
    measuring = Task("eval-x", "eval", RunConfig(), (), Where(tmp_path, "eval-x"), "new", "train-a", True)
    command = start_command(measuring)
    assert command[command.index("pte_cli") + 1 :][:2] == ["eval", str(tmp_path / "runs" / "train-a")]


def test_set_aside_keeps_everything(tmp_path):
    where = Where(tmp_path, "a")
    for text in ("one", "two"):
        where.run.mkdir(parents=True)
        (where.run / "f").write_text(text)
        set_aside(where)
    assert [(tmp_path / "runs" / f"a.{i}" / "f").read_text() for i in (1, 2)] == ["one", "two"]


def test_progress_is_the_last_whole_line(tmp_path):
    lines = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.5, "peak_bytes": 9}\n{"step": 3, "lo'
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert last_record(tmp_path / "metrics.jsonl") == {"step": 2, "loss": 1.5, "peak_bytes": 9}
    found = progress_of(tmp_path)
    assert (found.step, found.metric, found.peak_bytes) == (2, ("loss", 1.5), 9)
    assert progress_of(tmp_path / "none").step == 0


def test_slots_share_devices_and_cores(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert devices({}, tmp_path) == ["0", "1"]
    assert devices({"CUDA_VISIBLE_DEVICES": "4, 6"}, tmp_path) == ["4", "6"]
    assert devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    here = {"CUDA_VISIBLE_DEVICES": "4,6"}
    slots = slot_environments(3, 2, "local", here)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["4", "6", "4"]
    assert {slot["OMP_NUM_THREADS"] for slot in slots} == {"2"}
    assert "CUDA_VISIBLE_DEVICES" not in slot_environments(1, 1, "slurm", here)[0]
    assert int(slot_environments(1000, None, "local", {})[0]["OMP_NUM_THREADS"]) == 1
