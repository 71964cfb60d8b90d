"""experiments.toml: what is in it, what is wrong with it, and which runs it means."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from pte_cli.config import load_config
from pte_cli.errors import UsageError
from pte_cli.sweep.expand import axis_points, expand
from pte_cli.sweep.plan import make_plan
from pte_cli.sweep.schema import METRICS, parse_sweep, read_sweep

ROOT = Path(__file__).parent.parent.parent
GOOD = """
schema = 1
[sweep]
name = "s"
seeds = [0, 1]
baseline = "lora_c"
[defaults]
evict.budget = 50
[runs.base]
command = "eval"
[runs.lora_c]
encoder.name = "none"
[runs.pte]
"evict.frac" = 0.5
"""
AXIS = """
[[axes]]
name = "a"
base = "pte"
"""


def parsed(text):
    return parse_sweep(Path("x.toml"), tomli.loads(text))


def cells(text):
    return expand(parsed(text))


def test_named_runs_come_with_every_seed():
    found = cells(GOOD)
    assert [(p.cell.name, p.cell.seed, p.command) for p in found] == [
        ("main/base", 0, "eval"),
        ("main/lora_c", 0, "train"),
        ("main/pte", 0, "train"),
        ("main/base", 1, "eval"),
        ("main/lora_c", 1, "train"),
        ("main/pte", 1, "train"),
    ]
    last = found[-1].config
    assert (last.seed, last.evict.budget, last.evict.frac, last.encoder.name) == (1, 50, 0.5, "pte")


def test_a_runs_key_is_the_identity_of_its_settings():
    flags = {"evict.budget": 50, "evict.frac": 0.5, "seed": 1}
    from pte_cli.checks import check_config

    wanted = check_config(load_config(env={}, flags=flags)).identity()
    assert cells(GOOD)[-1].cell.key == f"train-{wanted}"


def test_the_model_as_it_is_does_not_depend_on_the_seed():
    found = {p.cell.key for p in cells(GOOD) if p.cell.arm == "base"}
    assert len(found) == 1


def test_a_grid_is_crossed_and_a_zip_goes_side_by_side():
    text = GOOD + AXIS + 'grid.evict.frac = [0.25, 1.0]\nzip."task.entries" = [4, 8]\nzip.evict.budget = [24, 32]\n'
    file = parsed(text)
    assert axis_points(file, file.axes[0]) == [
        {"evict.frac": 0.25, "task.entries": 4, "evict.budget": 24},
        {"evict.frac": 1.0, "task.entries": 4, "evict.budget": 24},
        {"evict.frac": 0.25, "task.entries": 8, "evict.budget": 32},
        {"evict.frac": 1.0, "task.entries": 8, "evict.budget": 32},
    ]
    names = [p.cell.name for p in expand(file) if p.cell.part == "a" and p.cell.seed == 0]
    assert names[0] == "a/pte/frac=0.25,entries=4,budget=24"
    assert len(names) == 4


def test_excluded_points_are_left_out_even_where_they_would_be_wrong():
    text = GOOD + AXIS + 'grid.encoder.name = ["none", "pte"]\ngrid.encoder.global_tokens = [8, 16]\n'
    with pytest.raises(UsageError, match=r"\[axes.a\]: on pte with encoder.name = \"none\".*unknown setting"):
        cells(text)
    found = [p.cell.values for p in cells(text + 'exclude = [{ encoder.name = "none" }]\n') if p.cell.part == "a"]
    assert found[:2] == [{"encoder.name": "pte", "encoder.global_tokens": n} for n in (8, 16)]


def test_a_point_that_a_run_has_already_is_the_same_run():
    plan = make_plan(parsed(GOOD + AXIS + "grid.evict.frac = [0.5, 1.0]\nseeds = [0]\n"), Path("nowhere"))
    shared = [task for task in plan.tasks if len({cell.name for cell in task.cells}) == 2]
    assert [{cell.name for cell in task.cells} for task in shared] == [{"main/pte", "a/pte/frac=0.5"}]
    assert len(plan.tasks) == 1 + 4 + 1


def test_an_axis_that_evaluates_measures_trained_runs():
    text = GOOD + AXIS + 'command = "eval"\ngrid.evict.budget = [40, 60]\n'
    plan = make_plan(parsed(text), Path("nowhere"), only=["a"])
    trained = [task for task in plan.tasks if task.command == "train"]
    measured = [task for task in plan.tasks if task.command == "eval"]
    assert [task.cells[0].name for task in trained] == ["main/pte", "main/pte"]
    assert sorted(task.after for task in measured) == sorted(2 * [task.key for task in trained])
    assert {task.config.evict.budget for task in measured} == {40, 60}
    assert all(task.config.evict.frac == 0.5 for task in measured)


def test_an_axis_can_start_from_an_axis():
    train = AXIS + "zip.task.entries = [4, 8]\nzip.evict.budget = [24, 32]\n"
    test = '[[axes]]\nname = "b"\nbase = ["a/*"]\ncommand = "eval"\ngrid.task.entries = [6]\nseeds = [1]\n'
    found = [p for p in cells(GOOD + train + test) if p.cell.part == "b"]
    assert [p.cell.name for p in found] == [
        "b/pte@entries=4,budget=24/entries=6",
        "b/pte@entries=8,budget=32/entries=6",
    ]
    assert [p.config.evict.budget for p in found] == [24, 32]
    assert len({p.cell.key for p in found}) == 2


def test_a_full_cache_has_no_budget():
    found = cells(GOOD + AXIS + 'grid.evict.policy = ["full", "sliding"]\n')
    assert [p.cell.budget for p in found if p.cell.part == "a"][:2] == [None, 50]


WRONG = {
    "no schema": (GOOD.replace("schema = 1", ""), "schema = None: this version reads schema = 1"),
    "unknown table": ("runz = 1\n" + GOOD, "runz: unknown key; did you mean 'runs'"),
    "unknown key of the sweep": (
        GOOD.replace("seeds", "seed"),
        "sweep.seed = [0, 1]: unknown key; did you mean 'seeds'",
    ),
    "unknown key of its budget": (
        GOOD.replace("seeds = [0, 1]", "budget.hour = 3"),
        "sweep.budget.hour = 3: unknown key; did you mean 'hours'",
    ),
    "unknown key of its minutes": (
        GOOD.replace("seeds = [0, 1]", "budget.minutes.trian = 3"),
        "sweep.budget.minutes.trian = 3: unknown key; did you mean 'train'",
    ),
    "no runs": (GOOD.partition("[runs")[0], "[runs]: missing"),
    "unknown setting of a run": (
        GOOD.replace('"evict.frac"', '"evict.frak"'),
        "[runs.pte]: evict.frak = 0.5: unknown setting; did you mean 'frac'",
    ),
    "unknown section": (
        GOOD + "[runs.q]\nevikt.budget = 3\n",
        "[runs.q]: evikt.budget = 3: unknown setting; did you mean 'evict.budget'?",
    ),
    "wrong default": (
        GOOD.replace("evict.budget = 50", "evict.frac = 3"),
        "[defaults]: evict.frac = 3: must be at most 1",
    ),
    "wrong point": (
        GOOD + AXIS + "grid.evict.frac = [0.5, 2]\n",
        "[axes.a]: on pte with evict.frac = 2: evict.frac = 2",
    ),
    "impossible budget": (GOOD + AXIS + "grid.evict.budget = [20]\n", "[axes.a]: on pte with evict.budget = 20: "),
    "unequal zip": (
        GOOD + AXIS + "zip.evict.frac = [0.5, 1.0]\nzip.evict.budget = [40]\n",
        "axes.a.zip: its lists must be equally long: evict.frac has 2, evict.budget has 1",
    ),
    "no list": (GOOD + AXIS + "grid.evict.frac = 0.5\n", "axes.a.grid.evict.frac: must be a list of values, got 0.5"),
    "empty axis": (GOOD + AXIS, "axes.a: sets nothing"),
    "unknown base": (
        GOOD + AXIS.replace('"pte"', '"ptee"') + "grid.evict.frac = [1.0]\n",
        "axes.a.base = 'ptee': no such run; did you mean 'pte'",
    ),
    "base that trains nothing": (
        GOOD
        + AXIS
        + 'command = "eval"\ngrid.evict.budget = [60]\n[[axes]]\nname = "b"\nbase = "a/*"\ngrid.evict.frac = [1.0]\n',
        "axes.b.base = 'a/*': a/pte/budget=60 measures a run and trains none; start from 'pte'",
    ),
    "two axes of one name": (GOOD + 2 * (AXIS + "grid.evict.frac = [1.0]\n"), "axes.name = 'a': is taken"),
    "unknown key of an axis": (
        GOOD + AXIS + "girds = 1\n",
        "axes.a.girds = 1: unknown key; did you mean 'grid'",
    ),
    "exclude that matches nothing": (
        GOOD + AXIS + "grid.evict.frac = [1.0]\nexclude = [{ evict.frac = 0.3 }]\n",
        "axes.a.exclude: {'evict.frac': 0.3} matches no cell",
    ),
    "a seed the sweep hasn't": (
        GOOD + AXIS + "grid.evict.frac = [1.0]\nseeds = [0, 9]\n",
        "axes.a.seeds: 9 is not one of sweep.seeds",
    ),
    "seeds twice": (GOOD.replace("[0, 1]", "[0, 0]"), "sweep.seeds = [0, 0]: must be different whole numbers"),
    "seed in a run": (GOOD + "seed = 3\n", "runs.pte.seed = 3: seeds are given once"),
    "out in the defaults": (GOOD.replace("evict.budget = 50", 'out = "x"'), "defaults.out = 'x'"),
    "unknown baseline": (GOOD.replace('"lora_c"', '"lorac"'), "sweep.baseline = 'lorac': no such run; did you mean"),
    "unknown metric": (GOOD.replace("seeds", 'metric = "speed"\nseeds'), "sweep.metric = 'speed': "),
    "profile": (
        GOOD.replace("seeds", 'command = "profile"\nseeds'),
        "sweep.command = 'profile': a sweep runs 'train' or 'eval'",
    ),
    "unknown command of a run": (GOOD + 'command = "tran"\n', "runs.pte.command = 'tran': a sweep runs"),
    "an evaluation that changes the training": (
        GOOD + AXIS + 'command = "eval"\ngrid.adapter.rank = [8]\n',
        "axes.a: changes adapter, which the training of pte decided",
    ),
    "hours without an estimate": (GOOD.replace("seeds", "budget.hours = 2\nseeds"), "sweep.budget.hours = 2: needs"),
    "too many runs": (
        GOOD.replace("seeds", "budget.runs = 3\nseeds"),
        "sweep.budget.runs = 3: there are 5 runs to do; allow more, or use --only",
    ),
    "too many hours": (
        GOOD.replace("seeds", "jobs = 2\nbudget.hours = 2\nbudget.minutes = { train = 90, eval = 12 }\nseeds"),
        "sweep.budget.hours = 2: what is to do takes about 3.1 hours with jobs = 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_file_and_key(case):
    text, message = WRONG[case]
    with pytest.raises(UsageError) as error:
        make_plan(parsed(text), Path("nowhere"))
    assert str(error.value).startswith(f"x.toml: {message}")
    assert "\n" not in str(error.value)


def test_a_budget_of_hours_counts_what_is_selected():
    text = WRONG["too many hours"][0]
    assert make_plan(parsed(text), Path("nowhere"), only=["main/base"]).hours == pytest.approx(0.1)


def test_a_file_that_is_no_toml_names_the_line(tmp_path):
    (tmp_path / "x.toml").write_text("schema = 1\n[sweep\n")
    with pytest.raises(UsageError, match=r"x.toml: .*\(at line 2, column 7\)"):
        read_sweep(tmp_path / "x.toml")
    with pytest.raises(UsageError, match=r"none.toml: can't be read"):
        read_sweep(tmp_path / "none.toml")


def test_only_what_matches_is_planned():
    file = parsed(GOOD + AXIS + "grid.evict.frac = [0.5, 1.0]\n")
    for only, count in (("main", 5), ("a", 4), ("main/*", 5), ("main/pte", 2), ("a/pte/frac=1.0", 2), ("*/pte*", 4)):
        assert len(make_plan(file, Path("nowhere"), only=[only]).tasks) == count, only
    with pytest.raises(UsageError, match=r"--only 'nothing': matches no run of x.toml"):
        make_plan(file, Path("nowhere"), only=["main", "nothing"])


def test_metrics_are_keys_of_an_accuracy():
    from dataclasses import fields

    from pte_cli.eval.accuracy import Accuracy

    assert set(METRICS) <= {field.name for field in fields(Accuracy)}


def test_the_shipped_file_is_the_papers_comparison():
    plan = make_plan(read_sweep(ROOT / "experiments.toml"), Path("nowhere"))
    main = {}
    for task in plan.tasks:
        for cell in task.cells:
            if cell.part == "main":
                main.setdefault(cell.arm, {})[task.key] = task.config
    counts = {arm: len(found) for arm, found in main.items()}
    assert counts == {"baseline": 1, "baseline_full": 1, "lora": 5, "lora_c": 5, "ttt": 5, "pte": 5}
    strategies = {
        arm: (next(iter(found.values())).encoder.name, next(iter(found.values())).evict.policy)
        for arm, found in main.items()
    }
    assert strategies["lora"] == ("none", "full")
    assert strategies["lora_c"] == ("none", "sliding")
    assert strategies["ttt"] == ("ttt", "sliding")
    assert strategies["pte"] == ("pte", "sliding")
    trained = [config for arm in set(main) - {"baseline", "baseline_full"} for config in main[arm].values()]
    assert len({(c.evict.budget, c.sft.steps, c.train.objective, c.eval.problems, c.eval.seed) for c in trained}) == 1

    def values(part, key):
        return sorted({cell.values[key] for cell in plan.cells if cell.part == part})

    assert min(values("window", "evict.budget")) - 31 == 32 // 4
    assert max(values("window", "evict.budget")) - 31 == 32
    assert values("global_tokens", "encoder.global_tokens") == [8, 16, 32, 64]
    assert values("policy", "evict.policy") == ["importance", "sink", "sliding"]
    assert values("policy", "encoder.name") == ["none", "pte", "ttt"]
    assert values("task", "task.name") == ["updates"]
    assert values("gradient", "train.gradient") == ["truncated"]
    for part in ("recipe", "steps", "window_test", "frac", "rank", "normalize", "length_train", "length_test"):
        assert any(cell.part == part for cell in plan.cells), part
