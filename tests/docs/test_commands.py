"""Every command that the documentation shows is tried, and every other block is known to be tested somewhere."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter

import pytest
from pages import DOCS, PAGES, ROOT, blocks, commands, fenced
from running import pte

ELSEWHERE = {
    ("README.md", ""): (1, "a prompt and its completion: test_the_completion_of_the_readme_is_right"),
    ("README.md", "python"): (1, "test_code.py: test_the_adapter_of_the_readme_is_loaded"),
    ("budget.md", "python"): (1, "test_code.py: test_the_numbers_of_the_budget_page"),
    ("data.md", "json"): (1, "the rows that the commands here train on"),
    ("data.md", "python"): (1, "test_code.py: test_the_reward_of_the_data_page_works"),
    ("index.md", "{toctree}"): (5, "test_site.py"),
    ("plugins.md", "python"): (2, "test_code.py: test_the_policy_of_the_plugin_page_works"),
    ("plugins.md", "toml"): (1, "test_code.py: test_the_policy_of_the_plugin_page_works"),
    ("sweep.md", "python"): (1, "test_code.py: test_the_launcher_of_the_sweep_page_works"),
    ("sweep.md", "toml"): (2, "test_code.py: test_the_file_of_the_sweep_page_can_be_planned"),
    ("tutorial.md", "python"): (1, "test_tutorial.py"),
    ("tutorial-policy.md", "python"): (1, "test_code.py: test_the_tutorial_leads_to_a_working_policy"),
    ("tutorial-policy.md", "toml"): (1, "test_code.py: test_the_tutorial_leads_to_a_working_policy"),
}
WHOLE = {"tutorial.md": "test_tutorial.py", "tutorial-policy.md": "test_code.py"}
"""Pages whose commands are run one after the other, by another test."""

NOT_OURS = {
    "pip install -e .": "it is how the tests were installed; .ci/run does it in a fresh environment",
    "pip install -e .[dev]": "the same",
    "pytest": "it is what runs this",
    "accelerate launch --multi_gpu --num_processes 2 -m pte_cli train --objective grpo": (
        "two processes are started by tests/train/test_processes.py"
    ),
    "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 -m pte_cli train --objective grpo": "the same",
}

TRIED: list[tuple[str, list[str], str]] = [
    # What a command begins with, what is added so that it takes no time, and how a failure may end that is expected
    # here: no such extra, a run that is finished, or a value that is refused once everything before has been accepted.
    ("pte train --data gym:", ["--dry-run"], "pip install 'pte-cli[gym]'"),
    ("pte train --resume", ["--dry-run"], "has finished; see `pte eval runs/a`"),
    ("pte train", ["--dry-run", "--out", "new"], ""),
    ("pte sweep", ["--dry-run"], ""),
    ("pte eval --grade", [], ""),
    ("pte eval --model", ["--budget", "1"], "evict.budget = 1"),
    ("pte eval .* ?--bench", ["--budget", "1"], "evict.budget = 1"),
    ("pte eval", ["--problems", "2"], ""),
    ("pte generate What is", [], "the model's tokenizer has no token for 'What'"),
    ("pte generate", ["--max-new-tokens", "4"], ""),
    ("pte profile .*--report flops", [], ""),
    ("pte profile", ["--budget", "1"], "evict.budget = 1"),
    ("pte plugins check sliding", ["--set", "none=1"], "'sliding' takes no options"),
    ("pte (runs|report|export|plugins|doctor)", [], ""),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the pages' commands are given: two runs, rows, recorded completions, and the shipped sweep."""
    work = tmp_path_factory.mktemp("docs")
    small = ["--sft-steps", "1", "--problems", "4", "--set", "sft.batch=2", "--set", "sampling.rows=4"]
    done = pte("train", *small, "--out", "runs/a", cwd=work)
    assert done.returncode == 0, done.stderr
    shutil.copytree(work / "runs/a", work / "runs/b")
    rows = [row.replace("? c a", f"? c {x}") for row in blocks(DOCS / "data.md", "json") for x in "abc"]
    (work / "rows.jsonl").write_text("".join(rows))
    graded = {"answer": "2", "completions": ["\\boxed{2}", "\\boxed{3}", "\\boxed{2}", "no"]}
    (work / "completions.jsonl").write_text(json.dumps(graded) + "\n")
    shutil.copy(ROOT / "experiments.toml", work)
    return work


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page) and page.name not in WHOLE], ids=str)
def test_commands_are_accepted(page, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for words in commands(page):
        line = " ".join(words)
        if line in NOT_OURS:
            continue
        added, expected = next((added, end) for start, added, end in TRIED if re.match(start, line))
        done = pte(*words[1:], *added, cwd=tmp_path)
        good = done.returncode == 0 or (expected and done.returncode == 2 and expected in done.stderr)
        assert good, f"{line}\n{done.stderr}"


def test_every_other_block_is_tested():
    found = Counter((page.name, language) for page in PAGES for language, _ in fenced(page) if language != "bash")
    assert found == {key: count for key, (count, _) in ELSEWHERE.items()}


def test_the_completion_of_the_readme_is_right():
    """Read as a person would: the thinking pairs each label with its value, and the answer looks two of them up."""
    [text] = blocks(ROOT / "README.md", "")
    prompt, thinking, answer = (line.split()[1:] for line in text.splitlines())
    asked, labels, values = " ".join(prompt).strip("?= ").split(" : ")
    pairs = dict(zip(labels.split(), values.split(), strict=True))
    assert thinking == [word for pair in pairs.items() for word in pair]
    assert answer == ["!", *(word for label in asked.split() for word in (label, pairs[label]))]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_are_named_exist(page):
    """Links inside the project, and scripts, tests and modules that prose points at."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for name in re.findall(r"\b(?:benchmarks|tests|pte_cli|plugins)/[\w/-]+\.py\b", text):
        assert (ROOT / name).exists() or name == "tests/test_my_policy.py", name
