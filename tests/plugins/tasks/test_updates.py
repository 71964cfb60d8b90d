"""The second built-in task: a variable's last value counts."""

from __future__ import annotations

import random

import pytest
from pte_plugins.tasks.recall import LABELS, WORDS
from pte_plugins.tasks.updates import UpdatesTask

from pte_cli.api import Problem
from pte_cli.errors import UsageError
from pte_cli.plugin_options import check_options
from pte_cli.registry import build, load_registry

PROBLEM = Problem(prompt="? b a : a b a c : 4 7 2 2 =", thinking="a 4 b 7 a 2 c 2", answer="! b 7 a 2")


@pytest.mark.parametrize(("entries", "variables"), [(2, 1), (4, 4), (12, 6), (26, 3)])
def test_a_problem_holds_together(entries, variables):
    task = UpdatesTask(entries, min(3, variables), variables)
    problem = task.sample(random.Random(entries))
    asked, labels, values = (part.split() for part in problem.prompt.strip("? =").split(" : "))
    assert (len(labels), len(values), len(set(labels))) == (entries, entries, variables)
    assert set(labels) <= set(LABELS)
    assert problem.thinking.split() == [word for pair in zip(labels, values, strict=True) for word in pair]
    last = {label: value for label, value in zip(labels, values, strict=True)}  # noqa: C416
    assert problem.answer.split() == ["!", *(word for label in asked for word in (label, last[label]))]
    assert len(asked) == len(set(asked)) == min(3, variables)
    assert len(problem.prompt.split()) == task.shortest_prompt
    assert set(f"{problem.prompt} {problem.thinking} {problem.answer}".split()) <= set(WORDS)


@pytest.mark.parametrize(
    ("completion", "score"),
    [("a 4 b 7 a 2 c 2 ! b 7 a 2", 1.0), ("! b 7 a 4", 0.5), ("! a 2 b 7", 0.0), ("a 4 b 7 a 2 c 2", 0.0)],
)
def test_scores_by_hand(completion, score):
    """The first value of a variable that was assigned again is wrong."""
    assert UpdatesTask(4, 2, 3).score(PROBLEM, completion) == score


def test_it_is_a_plugin_with_options():
    spec = load_registry().task("updates")
    task = build(spec, {"entries": "5", "variables": 4})
    assert (task.entries, task.variables, task.queries, task.words, task.shortest_prompt) == (5, 4, 3, WORDS, 17)
    for options, message in (
        ({"entries": 4}, "variables = 6: at most task.entries = 4"),
        ({"variables": 2}, "queries = 3: at most task.variables = 2 can be asked for"),
    ):
        with pytest.raises(UsageError, match=f"task.options.*{message}"):
            check_options("task.options", spec, options)
