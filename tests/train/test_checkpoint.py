"""Checkpoints: whole or not there, and a run that goes on from one as if it had never stopped."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from test_loop import trainer

from pte_cli.errors import PteError, UsageError
from pte_cli.rollout.trace import Eviction, Trace
from pte_cli.train import checkpoint as module
from pte_cli.train.checkpoint import Checkpoint, Checkpoints
from pte_cli.train.rollouts import trace_of, trace_tensors

RECIPES = {
    "sft then grpo": ["train.objective=sft+grpo", "sft.steps=3", "grpo.steps=3"],
    "two updates a rollout": ["train.objective=grpo", "grpo.steps=6", "grpo.num_iterations=2", "grpo.beta=0.1"],
    "corrected": ["train.objective=grpo", "grpo.steps=6", "grpo.num_iterations=3",
                  "grpo.importance_sampling=token_truncate"],
    "exact": ["train.objective=grpo", "grpo.steps=6", "train.gradient=exact", "grpo.loss_type=gspo"],
}  # fmt: skip
TIMES = ("seconds/", "tokens_per_second/")


def one_state(step):
    return Checkpoint({"step": step}, {"weights": {"a": torch.full((3,), float(step))}})


def numbers(lines):
    return [{k: v for k, v in line.items() if not k.startswith(TIMES)} for line in lines]


@pytest.mark.parametrize(
    ("recipe", "at"),
    [*((recipe, 3) for recipe in RECIPES), pytest.param("two updates a rollout", 2, marks=pytest.mark.slow)],
)
def test_three_steps_and_the_rest_are_six(recipe, at, tmp_path):
    """Completions, metrics and weights are equal bit for bit, whatever is in flight when the run stops."""
    straight, first, second = [], [], []
    whole = trainer(*RECIPES[recipe], log=straight.append)
    for _ in whole.run():
        pass
    stopped = trainer(*RECIPES[recipe], log=first.append)
    for step in stopped.run():
        if step == at:
            break
    saved = Checkpoints(tmp_path, keep=1)
    saved.write(at, stopped.state())
    torch.manual_seed(99)
    resumed = trainer(*RECIPES[recipe], log=second.append)
    resumed.load_state(saved.newest(pytest.fail))
    for _ in resumed.run():
        pass
    assert numbers(first + second) == numbers(straight)
    for name, parameter in whole.trained.items():
        assert torch.equal(parameter, resumed.trained[name]), name


def test_the_newest_stay(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        saved.write(step, one_state(step))
    assert [path.name for path in saved.paths()] == ["step-00000002", "step-00000003"]
    assert saved.newest(pytest.fail).tensors["weights"]["a"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("damage", ["cut off", "changed", "no manifest", "missing file"])
def test_a_damaged_one_is_named_and_the_one_before_used(damage, tmp_path):
    saved = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        saved.write(step, one_state(step))
    newest = saved.paths()[-1]
    file = newest / "weights.safetensors"
    content = file.read_bytes()
    if damage == "cut off":
        file.write_bytes(content[:-5])
    elif damage == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        file.unlink()
    told = []
    found = saved.newest(lambda path, why: told.append((path, why)))
    assert found.state == {"step": 1}
    assert [path for path, _ in told] == [newest]


def test_a_full_disk_leaves_the_last_one_whole(tmp_path, monkeypatch):
    saved = Checkpoints(tmp_path, keep=1)
    saved.write(1, one_state(1))
    plain = module._write

    def full(path, content):
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(path, content)

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(PteError, match=r"step 2 can't be written \(No space left on device\); the last checkpoint"):
        saved.write(2, one_state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert saved.newest(pytest.fail).state == {"step": 1}


def test_a_trace_comes_back_as_it_was():
    positions = torch.arange(6, dtype=torch.int32).view(2, 1, 3)
    trace = Trace((1, 2), (3, 4, 5), "length", 8, (Eviction(1, 3, positions),), torch.tensor([-1.0, -2.0, -0.5]))
    again = trace_of(trace_tensors(trace))
    assert (again.prompt, again.completion, again.finish, again.budget) == ((1, 2), (3, 4, 5), "length", 8)
    assert torch.equal(again.evictions[0].positions, positions)
    assert (again.evictions[0].step, again.evictions[0].count) == (1, 3)
    assert torch.equal(again.logprobs, trace.logprobs)
    plain = Trace((1,), (2,), "stop", None, (), torch.tensor([-1.0]))
    assert trace_of(trace_tensors(plain)).evictions == ()


def test_another_number_of_processes_is_refused():
    one = trainer()
    state = one.state()
    state.state["processes"] = 2
    with pytest.raises(UsageError, match="made by 2 processes, this is 1"):
        one.load_state(state)
