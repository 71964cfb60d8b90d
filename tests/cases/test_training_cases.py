"""Public bug reports of trainers, each as a small input with the right outcome."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest
import torch
from cases.casework import D4, gradients, grpo, lines_of, rows_file, scores, scripted, trainer
from running import pte
from safetensors.torch import load_file

from pte_cli.errors import PteError
from pte_cli.runs import RunDir
from pte_cli.tasks.rewards import Batch, NamedReward, combine
from pte_cli.train.advantages import group_advantages


@pytest.fixture(scope="module")
def d4(tmp_path_factory):
    return rows_file(tmp_path_factory.mktemp("data") / "d4.jsonl", D4)


@pytest.fixture
def rewarded(monkeypatch):
    """In runs of the command line the first of two completions is worth 1, the second 0."""
    monkeypatch.setattr(
        "pte_cli.train.loop.score_traces", lambda examples, questions, traces: scores([1, 0] * (len(traces) // 2))
    )


def checkpointed(tiny, d4, folder, value):
    done = pte(*grpo(tiny, d4, f"train.gradient_checkpointing={value}"), "--out", value, cwd=folder)
    assert done.returncode == 0, done.stderr
    run = folder / value
    moments = load_file(next(run.glob("checkpoints/step-*/optimizer.safetensors")))
    # After the first step AdamW's first moment is a tenth of the gradient.
    return run, lines_of(run)[0], {k: v for k, v in moments.items() if k.endswith("exp_avg")}, done.stderr


def test_b03_b17_gradient_checkpointing_keeps_the_past_and_every_tensor_learns(tiny, d4, tmp_path, rewarded):
    """B03: trl#3683, the cache is dropped under checkpointing. B17: open-unlearning#178, B matrices stay zero."""
    _, plain, expected, _ = checkpointed(tiny, d4, tmp_path, "false")
    run, again, found, stderr = checkpointed(tiny, d4, tmp_path, "true")
    assert plain["evictions"] > 2
    assert again["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert found.keys() == expected.keys()
    largest = max(moment.abs().max() for moment in expected.values())
    for name, moment in expected.items():
        assert (found[name] - moment).abs().max() <= 1e-5 * largest, name
    said = stderr.splitlines()
    assert len(said) == len(set(said))
    # A gets its gradient through B, which starts at zero: after one step every B has moved.
    adapter = load_file(run / "adapter" / "adapter_model.safetensors")
    ups = {name: tensor for name, tensor in adapter.items() if "lora_B" in name}
    assert len(ups) == 2 * 7
    assert all(tensor.abs().max() > 0 for tensor in ups.values())
    # By hand: 2 layers x rank 4 x (4 x (64 + 64) + 3 x (64 + 128)).
    assert "trained parameters: LoRA 8,704, encoder pte " in stderr


def test_b07_a_batch_that_was_all_cut_off_teaches_nothing_and_says_so(tiny, d4, tmp_path, rewarded):
    """trl#6369: masked completions stay in the divisor, or the loss is 0/0."""
    cut = grpo(tiny, d4, "sampling.max_new_tokens=4", "grpo.mask_truncated_completions=true", "grpo.steps=2")
    done = pte(*cut, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in lines_of(tmp_path / "run"):
        assert (line["loss"], line["grad_norm"], line["completions/clipped_ratio"]) == (0, 0, 1)
        assert all(value is not None and math.isfinite(value) for value in line.values() if not isinstance(value, str))
    assert done.stderr.count("nothing was learnt") == 1
    assert (
        "step 1: nothing was learnt: all 4 completions were cut off and are masked; raise sampling.max_new_tokens = 4"
        in done.stderr
    )


def test_b07_half_a_batch_cut_off_is_the_other_half_alone(tiny, d4, monkeypatch):
    masked = "grpo.mask_truncated_completions=true"
    end = 257
    found = []
    for groups, rows in ((2, [(7, 8, end), (9, 7, 8, end), (7,), (8,)]), (1, [(7, 8, end), (9, 7, 8, end)])):
        one = trainer(tiny, d4, masked, f"grpo.prompts={groups}", "sampling.max_new_tokens=6", "model.dtype=float64")
        monkeypatch.setattr("pte_cli.rollout.sampling.sample", scripted(rows))
        found.append((one.grpo(), gradients(one)))
    (both, with_cut), (alone, without) = found
    assert both["completions/clipped_ratio"] == 0.5
    assert both["loss"] == pytest.approx(alone["loss"], abs=1e-12)
    assert max((a - b).abs().max() for a, b in zip(with_cut, without, strict=True)) < 1e-10
    assert any(gradient.abs().max() > 0 for gradient in without)


def test_b08_a_missing_reward_is_no_reward(tiny, d4):
    """ms-swift#8123: one missing reward makes a group NaN, or counts as 0."""
    found = group_advantages(torch.tensor([[math.nan, 1.0, 0.0, 1.0]]))
    known = group_advantages(torch.tensor([[1.0, 0.0, 1.0]]))
    assert found[0].tolist() == [0.0, *known[0].tolist()]
    one = trainer(tiny, d4, "grpo.group_size=3", rewards=lambda i: [math.nan, 1, 0][i % 3] if i < 3 else math.nan)
    metrics = one.grpo()
    assert (metrics["reward"], metrics["without_reward"], metrics["groups_skipped"]) == (0.5, 4, 1)
    assert math.isfinite(metrics["loss"])

    columns = {"answer": ["", "4"], "finish": ["stop", "stop"]}
    batch = Batch(["a", "b"], [r"\boxed{3}", r"\boxed{4}"], [[1], [2]], columns, ["d4.jsonl:1", "d4.jsonl:2"])
    from pte_plugins.rewards.math_verify import MathVerify, Options

    graded = combine([NamedReward("math-verify", MathVerify(Options(workers=1)))], batch)
    assert graded.by_name["math-verify"] == [None, 1.0]
    assert graded.missing == (0,)

    def raising(prompts, completions, completion_ids, answer, **_):
        return [1 / len(a) for a in answer]

    with pytest.raises(PteError, match=r"reward 'mine' failed at row d4.jsonl:1: ZeroDivisionError"):
        combine([NamedReward("mine", raising)], batch)


@pytest.mark.parametrize("beta", [0.04, 0.0])
def test_b09_equal_rewards_move_nothing_but_the_kl(tiny, d4, beta):
    """trl#5588: division by a spread of almost zero, and a KL that still moves the model."""
    assert group_advantages(torch.full((2, 8), 0.1)).eq(0).all()
    one = trainer(tiny, d4, f"grpo.beta={beta}", "grpo.group_size=8", rewards=lambda _: 0.1)
    for name, parameter in one.trained.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    before = [parameter.clone() for parameter in one.lora + one.encoder]
    seen = []
    one.log = seen.append
    for _ in one.run():
        pass
    [line] = seen
    assert line["frac_reward_zero_std"] == 1
    # Documented in docs/training.md: with beta such groups are still drawn towards the model without adapter.
    assert line["loss"] == pytest.approx(beta * line.get("kl", 0), rel=1e-4)
    assert all(math.isfinite(value) for value in line.values() if not isinstance(value, str))
    unmoved = [torch.equal(a, b) for a, b in zip(before, one.lora + one.encoder, strict=True)]
    assert all(unmoved) is (beta == 0)


def test_b12_every_number_of_problems_goes_with_every_group(tmp_path):
    """open-r1#249: a batch that the group does not divide. Here a batch is counted in problems, so all sizes work."""
    ours = ["train", "--objective", "grpo", "--dry-run"]
    assert pte(*ours, "--set", "grpo.prompts=7", "--group-size", "8", cwd=tmp_path).returncode == 0
    for size in ("1", "0"):
        done = pte(*ours, "--group-size", size, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"grpo.group_size = {size}: must be at least 2" in done.stderr


def test_b19_a_resumed_run_draws_the_same_rows(tiny, tmp_path, monkeypatch):
    """accelerate#4195: the position is restored, the order and random state are not. 7 rows, 2 a step: two epochs."""
    seven = rows_file(tmp_path / "seven.jsonl", [{"problem": f"{i}+{i}=", "answer": str(2 * i)} for i in range(7)])
    monkeypatch.setattr(
        "pte_cli.train.loop.score_traces",
        lambda examples, questions, traces: scores([len(set(trace.completion)) for trace in traces]),
    )
    command = grpo(tiny, seven, "grpo.steps=6", "train.completions_every=1", "sampling.max_new_tokens=20")
    assert pte(*command, "--out", "whole", cwd=tmp_path).returncode == 0
    log = RunDir.log

    def interrupted(run, metrics):
        if metrics["step"] == 4:
            raise KeyboardInterrupt
        log(run, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "log", interrupted)
        assert pte(*command, "--out", "parts", cwd=tmp_path).returncode == 130
    assert len(lines_of(tmp_path / "parts")) == 3
    assert pte("train", "--resume", "parts", cwd=tmp_path).returncode == 0

    def outcome(run):
        own = ("seconds/", "tokens_per_second/", "peak_bytes")
        lines = [{k: v for k, v in line.items() if not k.startswith(own)} for line in lines_of(run)]
        tables = [pq.read_table(file).to_pylist() for file in sorted(run.glob("completions/*.parquet"))]
        return json.dumps([lines, tables]), (run / "adapter" / "adapter_model.safetensors").read_bytes()

    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    assert [line["step"] for line in lines_of(tmp_path / "parts")] == [1, 2, 3, 4, 5, 6]
