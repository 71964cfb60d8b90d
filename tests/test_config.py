"""Where settings come from, which wins, and how wrong ones are reported."""

from __future__ import annotations

import json

import pytest

from pte_cli.checks import check_config
from pte_cli.config import RunConfig, load_config, validate
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
        ("evicct.budget=64", "evicct.budget = 64: unknown setting; did you mean 'evict.budget'?"),
        ("evict=3", "evict = 3"),
        ("grpo.group_size=1", "grpo.group_size = 1: must be at least 2"),
        ("train.objective=ppo", "train.objective = 'ppo': must be 'sft', 'grpo' or 'sft+grpo'"),
        ("task.queries=13", "task.options.queries = 13: at most task.entries = 12"),
        ("task.entrees=13", "task.entrees = 13: unknown setting; did you mean 'entries'"),
        ("task.name=recal", "task.name = 'recal': no such plugin; did you mean 'recall'"),
        ("encoder.normalise=row", "encoder.normalise = 'row': unknown setting; did you mean 'normalize'"),
        ("encoder.global_tokens=0", "encoder.options.global_tokens = 0: "),
        (
            "evict.n_sink=4",
            "evict.n_sink = 4: unknown setting; known: budget, frac, options, policy; 'sliding' takes no",
        ),
        ("adapter.target_modules=[]", "adapter.target_modules = []"),
        ("budget", "--set 'budget': expected KEY=VALUE"),
        ("seed.x=1", "seed.x = 1|seed = "),
    ],
)
def test_wrong_settings_are_named(setting, message):
    with pytest.raises(UsageError) as caught:
        check_config(load_config(env={}, sets=[setting]))
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
        check_config(load_config(env={"PTE_EVICT__BUGDET": "3"}))
    with pytest.raises(UsageError, match=r"adapter.rnk = 3: unknown setting; did you mean 'rank'"):
        load_config(env={"PTE_ADAPTER__RNK": "3"})


def test_defaults_are_the_papers():
    config = RunConfig()
    assert (config.evict.frac, config.adapter.rank, config.evict.policy, config.encoder.name) == (
        0.25,
        32,
        "sliding",
        "pte",
    )


def test_pretrained_models_learn_at_lower_rates():
    def rates(*sets):
        config = load_config(env={}, sets=sets)
        return config.learning_rate("sft"), config.learning_rate("grpo")

    assert rates() == (2e-3, 3e-4)
    assert rates("model.name=org/model") == (2e-4, 2e-5)
    assert rates("model.name=org/model", "sft.learning_rate=0.1", "grpo.learning_rate=0.2") == (0.1, 0.2)


def test_an_option_of_a_strategy_needs_no_options_in_its_name(tmp_path):
    """From every source, in either spelling, the later source wins; `options` is where it ends up."""
    toml, both = tmp_path / "run.toml", tmp_path / "both.toml"
    toml.write_text("[encoder]\nnormalize = 'row'\nglobal_tokens = 5\n[encoder.options]\ninitial = 'global'\n")
    read = {"global_tokens": 5, "initial": "global", "normalize": "row"}
    assert load_config(file=toml, env={}).encoder.options == read
    env = {"PTE_ENCODER__NORMALIZE": "none", "PTE_ENCODER__OPTIONS__GLOBAL_TOKENS": "6"}
    assert load_config(file=toml, env=env).encoder.options == {**read, "normalize": "none", "global_tokens": 6}
    sets = ["encoder.options.normalize=frobenius", "encoder.global_tokens=7"]
    over = load_config(file=toml, env=env, flags={"encoder.initial": "identity"}, sets=sets)
    assert over.encoder.options == {"global_tokens": 7, "initial": "identity", "normalize": "frobenius"}
    assert load_config(env={}, sets=["encoder.a.b=1"]).encoder.options == {"a": {"b": 1}}
    both.write_text("[encoder]\nglobal_tokens = 5\n[encoder.options]\nglobal_tokens = 6\n")
    with pytest.raises(
        UsageError, match=r"encoder.options = .*: --config also has encoder.global_tokens = 5; they are one"
    ):
        load_config(file=both, env={})
    with pytest.raises(UsageError, match=r"evict.options.n = 8: --set also has evict.n = 4; they are one setting"):
        load_config(env={}, sets=["evict.n=4", "evict.options.n=8"])
    assert load_config(env={}, sets=["evict.n=4", "evict.options.n=4"]).evict.options == {"n": 4}
    assert load_config(env={}, sets=["evict.n=4", "evict.n=8"]).evict.options == {"n": 8}


def test_another_strategy_does_not_inherit_options(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[encoder]\nname = 'pte'\nglobal_tokens = 5\n[evict]\nx = 1\n")
    other = load_config(file=file, env={}, flags={"encoder.name": "none", "evict.policy": "mine"})
    assert other.encoder.options == {}
    assert other.evict.options == {"x": 1}, "the file chose no policy: its options are for whichever is chosen"
    assert load_config(file=file, env={}, flags={"encoder.name": "pte"}).encoder.options == {"global_tokens": 5}


def test_checked_settings_hold_every_option():
    config = check_config(load_config(env={}, sets=["encoder.global_tokens='16'", "task.entries=8"]))
    assert config.task.options == {"entries": 8, "queries": 3}
    assert config.encoder.options == {
        "global_tokens": 16,
        "normalize": "frobenius",
        "initial": "identity",
        "read": "key",
        "rotated_keys": False,
    }
    assert validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config
    assert check_config(config).identity() == config.identity()


def test_settings_of_older_runs_are_still_read():
    assert validate({"task": {"entries": 8, "queries": 2}}).task.options == {"entries": 8, "queries": 2}
