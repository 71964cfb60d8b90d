"""`pte eval --grade`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def pte(*words):
    return subprocess.run(
        [sys.executable, "-m", "pte_cli", "eval", *map(str, words)], capture_output=True, text=True, check=False
    )


RIGHT, WRONG = r"\boxed{2}", r"\boxed{3}"
TWO = [
    {"id": "a", "answer": "2", "completions": [RIGHT, RIGHT, WRONG, WRONG], "finish": [*"ss", "length", "s"]},
    *({"id": "b", "problem": "1 + 1?", "answer": "2", "completion": c, "sample": i, "finish": "stop"}
      for i, c in enumerate([RIGHT, WRONG, r"\boxed{", ""])),
]  # fmt: skip


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_scores_reasons_and_samples(tmp_path):
    file, out = write(tmp_path / "in.jsonl", TWO), tmp_path / "out.jsonl"
    done = pte("--grade", file, "--k", "1,2,4", "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["average"]["mean"] == 0.375
    assert [result["pass_at"][k]["mean"] for k in ("1", "2", "4")] == pytest.approx([0.375, 2 / 3, 1.0])
    assert (result["problems"], result["samples"], result["truncated"]) == (2, [4, 4], 0.125)
    assert result["reasons"] == {"right": 3, "wrong": 3, "no_box": 1, "cut_off": 1}
    assert result["grader"].startswith("pte 1, math-verify ")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["sample"], row["score"]) for row in rows[:3]] == [("a", 0, 1), ("a", 1, 1), ("a", 2, 0)]
    assert (rows[6]["reason"], rows[6]["extracted"], rows[6]["grader"]) == ("cut_off", None, result["grader"])
    # What was written can be graded again.
    again = json.loads(pte("--grade", out, "--json").stdout)
    assert again["average"] == result["average"]


def test_the_table_names_size_and_grader(tmp_path):
    done = pte("--grade", write(tmp_path / "in.jsonl", TWO))
    assert "2 problems x 4, grader: pte 1, math-verify" in done.stdout
    assert "37.5 % (" in done.stdout
    one = pte("--grade", write(tmp_path / "one.jsonl", TWO[:1]))
    assert one.returncode == 0
    assert "50.0 % (no interval)" in one.stdout


def test_k_beyond_the_samples_is_refused(tmp_path):
    done = pte("--grade", write(tmp_path / "in.jsonl", TWO), "--k", "8")
    assert done.returncode == 2
    assert "k = 8" in done.stderr
    assert "k can be 1 to 4" in done.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "a list; one object a line"),
        ({"completion": "x"}, "no 'answer'"),
        ({"answer": ["2"], "completion": "x"}, "'answer' is"),
        ({"answer": "2"}, "no 'completion' and 'completions'"),
        ({"answer": "2", "completion": "x", "completions": ["x"]}, "both 'completion' and 'completions'"),
        ({"answer": "2", "completions": []}, "'completions' is []"),
        ({"answer": "2", "completion": 3}, "'completion' is 3"),
        ({"answer": "2", "completions": ["x", "y"], "finish": ["stop"]}, "'finish' is"),
        ({"answer": "3", "id": "a", "completion": "x"}, "has the answer '3' here and '2' in line 1"),
        ({"answer": "2", "id": "a", "completion": "x", "sample": 0}, "sample 0 of problem 'a' is there twice"),
        ({"answer": "2", "id": "c", "completion": "x", "sample": "0"}, "'sample' is"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    file = write(tmp_path / "in.jsonl", [TWO[0], "", line])
    done = pte("--grade", file)
    assert done.returncode == 2
    assert f"{file}, line 3: " in done.stderr
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_other_wrong_use(tmp_path):
    file = write(tmp_path / "in.jsonl", TWO)
    for words, message in {
        ("--grade", file, "--out", file): "is the file that is graded",
        ("--grade", file, "--budget", "48"): "leave out evict.budget",
        ("--grade", file, "--k", "two"): "--k two",
        ("--grade", file, "--out", tmp_path / "none" / "x"): "can't be written",
        ("--grade", tmp_path / "none"): "can't be read",
        ("--grade", write(tmp_path / "empty.jsonl", [])): "holds no completions",
        ("--k", "2"): "goes with --bench or --grade",
    }.items():
        done = pte(*words)
        assert done.returncode == 2, words
        assert message in done.stderr
    assert not list(tmp_path.glob("*.part"))


def test_no_torch_is_imported(tmp_path):
    file = write(tmp_path / "in.jsonl", TWO)
    code = (
        "import sys; from pathlib import Path; from pte_cli.cli.eval import evaluate\n"
        f"evaluate(grade=Path({str(file)!r}))\n"
        "print([m for m in ('torch', 'transformers', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
