"""The built-in task."""

from __future__ import annotations

import random

import pytest
from pte_plugins.tasks.recall import LABELS, WORDS, RecallTask

from pte_cli.api import Problem
from pte_cli.errors import UsageError
from pte_cli.plugin_options import check_options
from pte_cli.registry import build, load_registry
from pte_cli.tasks.streams import held_out, training_stream

PROBLEM = Problem(prompt="? c a : a b c : 4 7 7 =", thinking="a 4 b 7 c 7", answer="! c 7 a 4")


@pytest.mark.parametrize("entries", [2, 3, 12, 26])
def test_a_problem_holds_together(entries):
    task = RecallTask(entries, min(3, entries))
    problem = task.sample(random.Random(entries))
    asked, labels, values = (part.split() for part in problem.prompt.strip("? =").split(" : "))
    assert len(labels) == len(set(labels)) == entries
    assert set(labels) <= set(LABELS)
    pairs = dict(zip(labels, values, strict=True))
    assert problem.thinking.split() == [word for pair in pairs.items() for word in pair]
    assert problem.answer.split() == ["!", *(word for label in asked for word in (label, pairs[label]))]
    assert len(asked) == min(3, entries)
    assert len(problem.prompt.split()) == task.shortest_prompt
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
    assert held_out(task, "recall", 5, 0) == held_out(task, "recall", 10, 0)[:5]
    assert held_out(task, "recall", 5, 0) != held_out(task, "recall", 5, 1)
    rng = training_stream("recall", 0)
    assert not {task.sample(rng).prompt for _ in range(500)} & {p.prompt for p in held_out(task, "recall", 500, 0)}


def test_the_streams_are_those_the_published_figures_were_measured_on():
    """By hand: the random streams are named recall/eval/0 and recall/train/0, however the task is spelt."""
    task = RecallTask()
    first = task.sample(random.Random("recall/eval/0"))
    assert held_out(task, "recall", 1, 0) == held_out(task, "pte-cli:recall", 1, 0) == [first]
    assert training_stream("recall", 0).random() == random.Random("recall/train/0").random()


def test_it_is_a_plugin_with_options():
    spec = load_registry().task("recall")
    task = build(spec, {"entries": "5"})
    assert (task.entries, task.queries, task.words, task.shortest_prompt) == (5, 3, WORDS, 17)
    with pytest.raises(UsageError, match=r"task.options.queries = 13: at most task.entries = 12 can be asked for"):
        check_options("task.options", spec, {"queries": 13})
    with pytest.raises(UsageError, match=r"task.options.queries = 3: at most task.entries = 2 can be asked for"):
        check_options("task.options", spec, {"entries": 2})
