"""Where settings come from, which wins, and how wrong ones are reported."""

from __future__ import annotations

import json

import pytest

from pte_cli.config import RunConfig, load_config
from pte_cli.errors import UsageError


def test_precedence(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 1\n[evict]\nbudget = 101\nfrac = 0.1\npolicy = 'full'\n[adapter]\nrank = 1\n")
    env = {
        "PTE_EVICT__BUDGET": "102",
        "PTE_EVICT__FRAC": "0.2",
        "PTE_EVICT__POLICY": "sliding",
        "PTE_PLUGINS": "x",
    }
    flags = {"evict.budget": 103, "evict.frac": 0.3, "adapter.rank": None}
    config = load_config(file=file, env=env, flags=flags, sets=["evict.budget=104"])
    assert (config.seed, config.adapter.rank) == (1, 1)
    assert (config.evict.policy, config.evict.frac, config.evict.budget) == ("sliding", 0.3, 104)


def test_a_written_config_starts_the_same_run(tmp_path):
    config = load_config(env={}, sets=["encoder.options.normalize=row", "adapter.target_modules=['q_proj']", "out=a"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.model_dump(mode="json")))
    again = load_config(file=file, env={}, flags={"out": "b"})
    assert again.model_copy(update={"out": "a"}) == config
    assert again.identity() == config.identity()
    assert load_config(env={}, flags={"seed": 1}).identity() != load_config(env={}).identity()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evict.frac=0", "evict.frac = 0: must be more than 0"),
        ("evict.frac=1.5", "evict.frac = 1.5: must be at most 1"),
        ("evict.frac=nan", "evict.frac = nan"),
        ("evict.budget=-3", "evict.budget = -3: must be at least 5"),
        ("evict.budget=many", "evict.budget = 'many': input should be a valid integer"),
        ("evict.bugdet=64", "evict.bugdet = 64: unknown setting; did you mean 'budget'"),
        ("evicct.budget=64", "unknown setting; did you mean 'evict'"),
        ("evict=3", "evict = 3"),
        ("grpo.group_size=1", "grpo.group_size = 1: must be at least 2"),
        ("train.objective=ppo", "train.objective = 'ppo': must be 'sft', 'grpo' or 'sft+grpo'"),
        ("task.queries=13", "task.queries = 13: at most task.entries = 12"),
        ("adapter.target_modules=[]", "adapter.target_modules = []"),
        ("budget", "--set 'budget': expected KEY=VALUE"),
        ("seed.x=1", "seed.x = 1|seed = "),
    ],
)
def test_wrong_settings_are_named(setting, message):
    with pytest.raises(UsageError) as caught:
        load_config(env={}, sets=[setting])
    assert any(part in str(caught.value) for part in message.split("|"))
    assert "\n" not in str(caught.value)


def test_greedy_groups_are_refused():
    with pytest.raises(UsageError, match="sampling.temperature = 0.0: all completions of a group would be equal"):
        load_config(env={}, sets=["train.objective=grpo", "sampling.temperature=0"])


@pytest.mark.parametrize(
    ("content", "message"),
    [("[evict\nbudget = 1", "line 1"), ("[evict]\nfrac = 2", "evict.frac = 2"), ("\x00", "line 1")],
)
def test_wrong_files_are_named(tmp_path, content, message):
    file = tmp_path / "run.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        load_config(file=file, env={})
    with pytest.raises(UsageError, match="can't be read"):
        load_config(file=tmp_path / "missing.toml", env={})


def test_an_unknown_variable_is_named():
    with pytest.raises(UsageError, match="evict.bugdet"):
        load_config(env={"PTE_EVICT__BUGDET": "3"})


def test_defaults_are_the_papers():
    config = RunConfig()
    assert (config.evict.frac, config.adapter.rank, config.evict.policy, config.encoder.name) == (
        0.25,
        32,
        "sliding",
        "pte",
    )
