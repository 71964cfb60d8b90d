"""The tutorial as it is written, command after command in one folder; only its sizes are made small."""

from __future__ import annotations

import json
import re

import pytest
from pages import DOCS, blocks, commands
from running import pte

TUTORIAL = DOCS / "tutorial.md"
REAL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMALL = {
    "train": ["--sft-steps", "2", "--problems", "4", "--set", "sft.batch=4", "--set", "sampling.rows=4"],
    "eval": ["--problems", "4"],
}


def shown(part: str) -> list[list[str]]:
    """The `pte` commands of one part, as words after `pte`: the `built-in` model's or the `real` one's."""
    ours = [words[1:] for words in commands(TUTORIAL) if words[0] == "pte"]
    start = next(i for i, words in enumerate(ours) if REAL in words)
    return ours[:start] if part == "built-in" else ours[start:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tutorial")


@pytest.fixture(scope="module")
def outputs(folder):
    """What each command of the first part printed, by the command; all of them succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        found = {}
        for words in shown("built-in"):
            done = pte(*words, *SMALL.get(words[0], []), cwd=folder)
            assert done.returncode == 0, (words, done.stderr)
            found[" ".join(words)] = done.stdout
    return found


def test_every_command_leaves_what_the_page_says(folder, outputs):
    order = ["doctor", "eval", "eval", "train", "train", "eval", "runs", "report", "generate", "export"]
    assert [line.split()[0] for line in outputs] == order
    for run in ("runs/pte", "runs/none"):
        assert (folder / run / "adapter" / "adapter_model.safetensors").stat().st_size > 0
        assert len((folder / run / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "runs/pte/config.json").read_text())["encoder"]["name"] == "pte"
    assert json.loads((folder / "runs/none/config.json").read_text())["encoder"]["name"] == "none"
    assert (folder / "runs/pte/report.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in (folder / "exported").iterdir()} >= {"adapter_model.safetensors", "README.md"}
    assert not (folder / "exported" / "model.safetensors").exists()
    # Half of what is asked for stands in the prompt's example: the untrained model pairs it without any eviction.
    assert outputs["generate ? c a : a b c : 4 7 7 = --run runs/pte"].strip()


def test_metrics_that_the_pages_name_are_logged(folder, outputs):
    """Every name with a slash on the pages about training, and what troubleshooting tells one to look at."""
    sizes = ["--grpo-steps", "1", "--group-size", "4", "--set", "grpo.prompts=4", *SMALL["train"]]
    grpo = ["--objective", "sft+grpo", "--beta", "0.1", *sizes]
    done = pte("train", *grpo, "--set", "sampling.temperature=1.5", "--out", "runs/grpo", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = (folder / "runs/grpo/metrics.jsonl").read_text().splitlines()
    logged = {name for line in lines for name in json.loads(line)}
    for page, least in (("troubleshooting.md", 12), ("training.md", 8)):
        tables = "".join(re.findall(r"^\|.*\n", (DOCS / page).read_text(), flags=re.MULTILINE))
        columns = [line.split("|")[1] for line in tables.splitlines()]
        named = {name for column in columns for name in re.findall(r"`([a-z_]+(?:/[a-z0-9_]+)?)`", column)}
        named |= set(re.findall(r"`(gap/[a-z0-9]+)`", (DOCS / page).read_text()))
        # On a GPU, or where a reward has nothing to say; parts of names that the table shortens.
        named -= {"device_bytes", "without_reward", "high_mean", "region_mean", "clipped_ratio"}
        assert len(named) >= least
        assert sorted(named - logged) == [], page


def test_the_real_models_commands_are_spelt_right(folder, outputs, monkeypatch):
    """As dry runs on the built-in model, whose tokenizer lacks the words; the slow test runs them."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(folder)
    exec(blocks(TUTORIAL, "python")[0], {})
    assert len((folder / "sums.jsonl").read_text().splitlines()) == 400
    for words in shown("real"):
        if words[0] != "train":
            continue
        words = ["tiny" if word == REAL else word for word in words if word != "--show-prompt"]
        done = pte(*words, "--dry-run", cwd=folder)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_real_model_trains_generates_and_is_exported(smollm2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(blocks(TUTORIAL, "python")[0], {})
    small = "--sft-steps 2 --grpo-steps 1 --problems 2 --set sft.batch=2 --set grpo.prompts=1 --set grpo.group_size=2"
    for words in shown("real"):
        words = [str(smollm2) if word == REAL else word for word in words]
        done = pte(*words, *(small.split() if "--objective" in words else []), cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "runs/sums/report.html").exists()
    assert (tmp_path / "exported-sums/adapter_model.safetensors").exists()
