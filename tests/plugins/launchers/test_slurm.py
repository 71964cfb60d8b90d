"""Runs as submitit jobs, with its executors for one machine."""

from __future__ import annotations

import os
import sys
import time

import pytest
from pte_plugins.launchers.slurm import SlurmOptions, pte_launchers

from pte_cli.errors import UsageError
from pte_cli.registry import build

CODE = "import os, sys; print(os.environ['MINE'], os.getcwd()); sys.stderr.write('bad\\n'); sys.exit(3)"
[SPEC] = pte_launchers()


def launcher(tmp_path, **options):
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'pte-cli[slurm]'")
    return build(SPEC, {"folder": str(tmp_path / "jobs"), **options})


def wait(job, seconds=40):
    deadline = time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return job.poll()


@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_a_job_runs_with_its_environment_and_logs_both_streams(tmp_path, cluster):
    log = tmp_path / "logs" / "job.log"
    job = launcher(tmp_path, cluster=cluster).submit([sys.executable, "-c", CODE], log=log, environment={"MINE": "7"})
    assert wait(job) == 3
    assert sorted(log.read_text().splitlines()) == [f"7 {os.getcwd()}", "bad"]


def test_a_job_can_be_cancelled(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    job = launcher(tmp_path, cluster="local").submit(command, log=tmp_path / "log", environment={})
    assert job.poll() is None
    job.cancel()
    assert wait(job) not in (None, 0)


def test_parameters_go_to_submitit(tmp_path):
    given = {"cluster": "debug", "minutes": 90, "gpus": 2, "more": {"slurm_array_parallelism": 4}}
    parameters = launcher(tmp_path, **given).executor._executor.parameters
    assert (parameters["timeout_min"], parameters["gpus_per_node"]) == (90, 2)
    with pytest.raises(UsageError, match=r"launch.options.more: .*nonsense"):
        launcher(tmp_path, cluster="debug", more={"nonsense": 1})


def test_without_submitit_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"launch.engine = 'slurm': needs submitit; pip install 'pte-cli\[slurm\]'"):
        SPEC.build(SlurmOptions())
