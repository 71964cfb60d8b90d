"""`pte doctor`: what is there, what is missing, and no waiting for a network."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import tomli
import torch
from packaging.requirements import Requirement
from running import pte

from pte_cli import doctor
from pte_cli.registry import load_registry

PROJECT = tomli.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_what_is_there(tmp_path, offline):
    done = pte("doctor", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found["problems"]
    assert done.stderr == ""
    packages = {row["name"]: row for row in found["packages"]}
    assert packages["torch"]["version"] == version("torch")
    assert packages["torch"]["fits"]
    assert found["devices"][-1]["device"] == "cpu"
    assert len(found["devices"]) == 1 + torch.cuda.device_count() + torch.backends.mps.is_available()
    assert found["plugins"] == {"found": len(load_registry().found), "errors": [], "warnings": []}
    assert found["hub"] == {"endpoint": doctor.HUB, "state": "offline", "reason": "HF_HUB_OFFLINE is set"}
    folders = {row["for"]: row for row in found["folders"]}
    assert (folders["runs"]["path"], folders["runs"]["writable"]) == (str(tmp_path / "runs"), True)
    assert list(tmp_path.iterdir()) == []


def test_every_extra_is_a_feature_with_what_is_missing(monkeypatch):
    # As if nothing was installed but torch, and that too old.
    def installed(name):
        if name == "torch":
            return "2.1.0"
        raise doctor.PackageNotFoundError(name)

    extras = PROJECT["optional-dependencies"]
    optional = [f'{text}; extra == "{name}"' for name, texts in extras.items() for text in texts]
    monkeypatch.setattr(doctor, "requires", lambda _: [*PROJECT["dependencies"], *optional])
    monkeypatch.setattr(doctor, "version", installed)
    own, features = doctor.requirements()
    assert {row["extra"]: row["missing"] for row in features} == {
        name: [Requirement(text).name for text in extras[name]] for name in doctor.FEATURES
    }
    assert doctor.FEATURES.keys() == extras.keys()
    assert features[0]["install"].startswith("pip install 'pte-cli[")
    assert {row["name"] for row in own} == {Requirement(text).name for text in PROJECT["dependencies"]}
    assert not any(row["fits"] for row in own)


def test_what_keeps_pte_from_working_is_a_problem_and_exit_code_1(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(doctor, "devices", lambda: ([], "torch can't be imported: OSError: no libc"))
    (tmp_path / "runs").write_text("")
    done = pte("doctor", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "problem: torch can't be imported: OSError: no libc"
    assert lines[1] == f"problem: {tmp_path / 'runs'}: can't be written (runs)"
    assert lines[-1].startswith("next: ")


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200 if self.path == "/good" else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    serving = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()


def asked(endpoint, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    return doctor.HubQuestion().answer()


def test_a_hub_that_answers(server, monkeypatch):
    good, bad = f"{server}/good", f"{server}/bad"
    assert asked(good, monkeypatch) == {"endpoint": good, "state": "reachable", "reason": ""}
    assert asked(bad, monkeypatch) == {"endpoint": bad, "state": "reachable", "reason": "answers with 503"}


def test_a_hub_that_is_not_there(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = asked(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch)
    assert found["state"] == "unreachable"
    assert "refused" in found["reason"]
    assert asked("nonsense", monkeypatch)["state"] == "unreachable"


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.2)

    def never(*_, **__):
        time.sleep(5)
        raise TimeoutError

    monkeypatch.setattr(doctor.urllib.request, "urlopen", never)
    start = time.monotonic()
    found = asked("http://127.0.0.1:9", monkeypatch)
    assert (found["state"], found["reason"]) == ("unreachable", "no answer within 0.2 seconds")
    assert time.monotonic() - start < 2
