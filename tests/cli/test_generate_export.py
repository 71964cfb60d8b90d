"""`pte generate` and `pte export` through the command line, on a run of one step."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from chain_model import chain_model
from running import pte
from transformers import AutoModelForCausalLM

PROMPT = "? c a : a b c : 4 7 7 ="
PTE = [sys.executable, "-m", "pte_cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `run`, trained for one step with the encoder, and `chain`, a model that never ends after `!`."""
    folder = tmp_path_factory.mktemp("runs")
    done = pte("train", "--sft-steps", "1", "--problems", "2", "--set", "sft.batch=2", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    chain_model(folder / "chain")
    return folder


def test_text_on_stdout_and_what_it_took_on_stderr(folder):
    shown = pte("generate", PROMPT, "--run", "run", "--budget", "20", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    piped = pte("generate", "--run", "run", "--budget", "20", "--json", cwd=folder, stdin=PROMPT + "\n")
    document = json.loads(piped.stdout)
    assert shown.stdout == document["text"] + "\n"
    assert (document["prompt"], document["prompt_tokens"], document["encoder"]) == (PROMPT, 12, "pte")
    assert document["finish"] == "stop"
    # 8 slots for thinking, 2 leave each time: full after 8 fed tokens, then every 2.
    assert document["evictions"] == max(0, (len(document["tokens"]) - 8) // 2)
    # 4 layers, 2 KV heads of 32, 20 slots of float32 keys and values, 8 bytes a position.
    assert document["peak_cache_bytes"] == 4 * 2 * 2 * 20 * 32 * 4 + 20 * 8
    assert f"{len(document['tokens'])} tokens, finish stop, {document['evictions']} evictions" in shown.stderr


ENDLESS = ["generate", "go!", "--model", "chain", "--budget", "16", "--max-new-tokens", "1000000"]


def started(folder):
    process = subprocess.Popen([*PTE, *ENDLESS], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(3) == b"!!!"
    return process


def test_ctrl_c_is_exit_code_130_and_no_traceback(folder):
    process = started(folder)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert rest.endswith(b"\n")


def test_a_reader_that_has_enough_ends_it_quietly(folder):
    process = started(folder)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([PROMPT, "--run", "nowhere"], "'nowhere' is not a run"),
        ([PROMPT, "--encoder", "pte"], "--encoder pte: comes with a run, trained; the bare model has none"),
        ([PROMPT, "--temperature", "-1"], "sampling.temperature = -1.0: must be at least 0"),
        ([PROMPT, "--top-p", "0.9"], "--top-p 0.9: greedy generation always takes the likeliest token"),
        ([PROMPT, "--temperature", "1", "--top-p", "0"], "sampling.top_p = 0.0: must be more than 0"),
        ([PROMPT, "--prompt-style", "chatt"], "unknown prompt style; did you mean 'chat'"),
        ([PROMPT, "--max-new-tokens", "0"], "sampling.max_new_tokens = 0: must be at least 1"),
        ([""], "the prompt is empty"),
        ([], "the prompt is empty"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr("pte_cli.rollout.prepare.load", lambda *_, **__: pytest.fail("loaded a model"))
    done = pte("generate", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_what_only_the_model_can_tell_is_one_line_too(folder):
    done = pte("generate", "? a Hello", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the prompt: the model's tokenizer has no token for 'Hello'\n"
    done = pte("generate", PROMPT, "--budget", "14", cwd=folder)
    assert "a prompt of 12 tokens leaves 2 for thinking; use at least 16" in done.stderr


def test_export_of_the_adapter_and_nothing_overwritten(folder):
    done = pte("export", "run", "out", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["kind"], document["out"]) == ("adapter", "out")
    assert "after training" in (folder / "out" / "README.md").read_text()
    again = pte("export", "run", "out", cwd=folder)
    assert (again.returncode, again.stderr) == (2, "error: 'out': is there already; choose a new folder\n")
    none = pte("export", "nowhere", "other", cwd=folder)
    assert (none.returncode, none.stderr) == (2, "error: 'nowhere' is not a run: it has no config.json\n")


def test_export_of_merged_weights_generates_the_same(folder):
    done = pte("train", "--encoder", "none", "--sft-steps", "1", "--problems", "2", "--set", "sft.batch=2",
               "--out", "lora", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = pte("export", "lora", "merged", cwd=folder)
    assert done.stdout.startswith("merged weights in merged: README.md, config.json")
    assert AutoModelForCausalLM.from_pretrained(folder / "merged").config.tie_word_embeddings
    texts = [
        json.loads(pte("generate", PROMPT, *model, "--budget", "48", "--json", cwd=folder).stdout)["text"]
        for model in (["--model", "merged"], ["--run", "lora"])
    ]
    assert texts[0] == texts[1] != ""
