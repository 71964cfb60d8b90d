"""The built-in task."""

from __future__ import annotations

import random

import pytest

from pte_cli.tasks.recall import LABELS, WORDS, Problem, RecallTask, held_out, prompt_words, training_stream

PROBLEM = Problem(prompt="? c a : a b c : 4 7 7 =", thinking="a 4 b 7 c 7", answer="! c 7 a 4")


@pytest.mark.parametrize("entries", [2, 3, 12, 26])
def test_a_problem_holds_together(entries):
    problem = RecallTask(entries).sample(random.Random(entries))
    asked, labels, values = (part.split() for part in problem.prompt.strip("? =").split(" : "))
    assert len(labels) == len(set(labels)) == entries
    assert set(labels) <= set(LABELS)
    pairs = dict(zip(labels, values, strict=True))
    assert problem.thinking.split() == [word for pair in pairs.items() for word in pair]
    assert problem.answer.split() == ["!", *(word for label in asked for word in (label, pairs[label]))]
    assert len(asked) == min(3, entries)
    assert len(problem.prompt.split()) == prompt_words(entries, len(asked))
    assert set(f"{problem.prompt} {problem.thinking} {problem.answer}".split()) <= set(WORDS)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("a 4 b 7 c 7 ! c 7 a 4", 1.0),
        ("! c 7 a 4", 1.0),
        ("a 4 ! c 7 a 5", 0.5),
        ("! a 4 c 7", 0.0),
        ("! c 1 a 1 ! c 7 a 4", 1.0),
        ("! c 7 a 4 b 7", 0.0),
        ("! c 7", 0.0),
        ("a 4 b 7 c 7", 0.0),
        ("", 0.0),
        ("!", 0.0),
    ],
)
def test_scores_by_hand(completion, score):
    assert RecallTask(3, 2).score(PROBLEM, completion) == score


def test_held_out_problems_are_fixed_and_not_those_of_training():
    task = RecallTask()
    assert held_out(task, 5, 0) == held_out(task, 10, 0)[:5]
    assert held_out(task, 5, 0) != held_out(task, 5, 1)
    rng = training_stream(0)
    assert not {task.sample(rng).prompt for _ in range(500)} & {p.prompt for p in held_out(task, 500, 0)}
