"""The reward `reasoning-gym`: the answer it finds in a completion, and the task's own score of it."""

from __future__ import annotations

import pytest
from pte_plugins.rewards.reasoning_gym import ReasoningGym, final_answer

from pte_cli.errors import UsageError
from pte_cli.testing import RewardContract


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer> 3 </answer>", "3"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        (r"<think>\boxed{1}</think> so \boxed{7}", "7"),
        ("so </think> 7 ", "7"),
        ("<think> 7", None),
        ("4", "4"),
    ],
)
def test_the_final_answer(completion, answer):
    assert final_answer(completion) == answer


def test_scores_are_the_tasks_own():
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    rows = [dict(gym.create_dataset("chain_sum", size=2, seed=3)[i]) for i in range(2)]
    answers = [rows[0]["answer"], "nonsense"]
    columns = {name: [row[name] for row in rows] for name in ("answer", "metadata")}
    scores = ReasoningGym()(
        [row["question"] for row in rows], [f"<answer>{a}</answer>" for a in answers], [], **columns
    )
    made = gym.create_dataset("chain_sum", size=1, seed=0)
    assert scores == [made.score_answer(answer, row) for answer, row in zip(answers, rows, strict=True)]
    assert scores[0] == 1


def test_rows_without_a_task_have_no_reward():
    assert ReasoningGym()(["q"], ["4"], [], answer=["4"], metadata=[{}]) == [None]


def test_missing_columns_are_named():
    with pytest.raises(UsageError, match="needs the columns answer and metadata"):
        ReasoningGym()(["q"], ["4"], [], answer=["4"])


class TestContract(RewardContract):
    plugin = "pte-cli:reasoning-gym"
    columns = RewardContract.columns | {"metadata": [{}] * 5}
