"""The built-in rewards, through the hooks of their modules."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest
from pydantic import ValidationError

from pte_cli.errors import UsageError

MODULES = {"math-verify": "math_verify", "boxed-format": "boxed_format", "overlong": "overlong"}


def reward(name, **options):
    [spec] = importlib.import_module(f"pte_plugins.rewards.{MODULES[name]}").pte_rewards()
    assert spec.name == name
    return spec.build(spec.options(**options))


def call(function, completions, ids=None, **columns):
    return function(["?"] * len(completions), completions, ids or [[]] * len(completions), **columns)


def test_each_has_an_entry_point():
    found = {entry.value for entry in entry_points(group="pte")}
    assert {f"pte_plugins.rewards.{module}" for module in MODULES.values()} <= found


def test_math_verify():
    function = reward("math-verify", workers=1)
    completions = [r"\boxed{\sqrt{20}}", r"\boxed{2}", "none", [{"role": "assistant", "content": r"\boxed{4}"}]]
    assert call(function, completions, answer=[r"2\sqrt{5}", r"2\sqrt{5}", "1", 4]) == [1, 0, 0, 1]
    solutions = [r"So it is $\boxed{2\sqrt{5}}$."] * 2 + ["1", None]
    assert call(function, completions, solution=solutions) == [1, 0, 0, None]
    # A reference that can't be read says nothing about a wrong answer, and something about the same text.
    assert call(function, [r"\boxed{5}", r"\boxed{t(0,4]}"], answer=["t(0,4]"] * 2) == [None, 1]
    assert call(function, [r"\boxed{50\%}"], answer=["50"], problem=["What percentage is it?"]) == [1]
    function.grader.close()


def test_math_verify_without_a_reference_column():
    with pytest.raises(UsageError, match=r"no column answer or solution in the data \(its columns: target\)"):
        call(reward("math-verify"), ["x"], target=["1"])
    function = reward("math-verify", column="target")
    assert call(function, [r"\boxed{1}"], target=["1"]) == [1]


def test_boxed_format():
    completions = [r"\boxed{wrong}", r"\boxed{", r"<think>\boxed{1}</think>", r"<think>a</think>\boxed{1}", r"\boxed{}"]
    assert call(reward("boxed-format"), completions) == [1, 0, 0, 1, 0]
    assert call(reward("boxed-format", think=True), completions) == [0, 0, 0, 1, 0]


def test_overlong_is_the_papers_formula():
    # DAPO: L_max 20480, L_cache 4096: nothing up to 16384, half way -1/2, -1 from L_max on.
    function = reward("overlong", max_length=20480, buffer=4096)
    ids = [range(n) for n in (0, 16384, 18432, 20480, 30000)]
    assert call(function, [""] * 5, ids) == [0, 0, -0.5, -1, -1]
    assert reward("overlong", max_length=20480).buffer == 4096
    with pytest.raises(ValidationError, match="buffer = 11 is more than max_length = 10"):
        reward("overlong", max_length=10, buffer=11)
