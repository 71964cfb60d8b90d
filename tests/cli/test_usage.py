"""What is said about a command line before any command sees it; help; what the shell is offered."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
from running import pte

from pte_cli.cli import ui
from pte_cli.cli.app import app
from pte_cli.config import RunConfig
from pte_cli.setting_errors import setting_names

MISSPELT = {
    "command": (["trian"], "no such command 'trian'; did you mean 'train'?; see pte --help"),
    "command of a group": (["plugins", "inf"], "no such command 'inf'; did you mean 'info'?; see pte plugins --help"),
    "flag": (["train", "--encodr", "pte"], "no such option: --encodr; did you mean --encoder?; see pte train --help"),
    "flag like no other": (["train", "--xyz", "1"], "no such option: --xyz; see pte train --help"),
    "missing argument": (["report"], "missing argument 'RUN'; see pte report --help"),
    "one argument too many": (["doctor", "x"], "got unexpected extra argument(s) (x); see pte doctor --help"),
    "setting without its section": (
        ["train", "--set", "rank=3"],
        "rank = 3: unknown setting; did you mean 'adapter.rank'?",
    ),
    "setting of several sections": (
        ["train", "--set", "steps=3"],
        "steps = 3: unknown setting; did you mean 'sft.steps' or 'grpo.steps'?",
    ),
    "setting of no section": (
        ["train", "--set", "adaptr.alpa=1"],
        "adaptr.alpa = 1: unknown setting; did you mean 'adapter.alpha'?",
    ),
    "setting of a section": (
        ["train", "--set", "adapter.rnk=3"],
        "adapter.rnk = 3: unknown setting; did you mean 'rank'?",
    ),
    "plugin": (["plugins", "info", "slidding"], "plugin = 'slidding': no such plugin; did you mean 'sliding'?"),
    "kind": (["plugins", "list", "--kind", "evct"], "did you mean 'evict'?"),
    "one run to compare": (["runs", "compare", "a"], "pte runs compare a: name at least two runs"),
    "no runs": (["runs", "list", "nowhere"], "'nowhere': there is no such folder"),
    "no run": (["report", "nowhere"], "'nowhere' is not a run: it has no config.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSPELT)
def test_what_is_misspelt_is_one_line(name, tmp_path):
    arguments, message = MISSPELT[name]
    done = pte(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def commands(group, path=()):
    for name, command in getattr(group, "commands", {}).items():
        yield (*path, name), command
        yield from commands(command, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_has_json():
    leaves = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}
    without = [path for path, c in leaves.items() if not any("--json" in p.opts for p in c.params)]
    assert len(leaves) == 15
    assert without == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_at_80_columns_is_whole(path, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = pte(*path, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert "…" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) == 80
    for parameter in COMMANDS[path].params:
        assert all(name in shown.stdout for name in parameter.opts if name.startswith("--")), parameter.opts
        # What is in brackets is shown, not taken for markup.
        for bracket in re.findall(r"\\\[([^\]]*)\]", getattr(parameter, "help", None) or ""):
            assert f"[{bracket}]" in " ".join(re.sub(r"[│\n]", " ", shown.stdout).split()), bracket


DEFAULTS = {
    "encoder": "encoder.name", "evict": "evict.policy", "frac": "evict.frac", "budget": "evict.budget",
    "rank": "adapter.rank", "objective": "train.objective", "sft_steps": "sft.steps", "grpo_steps": "grpo.steps",
    "group_size": "grpo.group_size", "loss_type": "grpo.loss_type", "beta": "grpo.beta", "grad": "train.gradient",
    "model": "model.name", "problems": "eval.problems", "device": "model.device", "seed": "seed",
    "save_every": "train.save_every",
}  # fmt: skip


def test_the_defaults_that_help_shows_are_those_of_the_settings():
    plain = RunConfig().model_dump()
    shown = {}
    for parameter in COMMANDS[("train",)].params:
        if parameter.name in DEFAULTS:
            [shown[parameter.name]] = re.findall(r"\\\[([^\]]*)\]$", parameter.help)
    expected = {}
    for name, setting in DEFAULTS.items():
        section, _, key = setting.rpartition(".")
        value = plain[section][key] if section else plain[key]
        expected[name] = f"{value:g}" if isinstance(value, float) else str(value)
    assert shown == expected


def test_exit_codes_are_in_the_help(tmp_path):
    shown = " ".join(pte("--help", cwd=tmp_path).stdout.split())
    assert "0 done, 1 failed, 2 wrong usage, 3 some runs of a sweep failed, 130 interrupted" in shown


def test_an_interrupt_is_one_word_and_130(tmp_path, monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[("doctor",)], "callback", interrupted)
    monkeypatch.setattr("pte_cli.doctor.examine", interrupted)
    done = pte("doctor", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


OFFERED = {
    "commands": ("pte do", {"doctor"}),
    "flags": ("pte train --enc", {"--encoder"}),
    "policies": ("pte train --evict s", {"sliding", "sink"}),
    "encoders": ("pte eval --encoder ", {"none", "pte", "ttt"}),
    "rewards": ("pte train --reward m", {"math-verify"}),
    "plugins of all kinds": ("pte plugins info l", {"local"}),
    "settings": ("pte train --set evict.fr", {"evict.frac="}),
    "options of strategies": ("pte train --set evict.n_", {"evict.n_sink="}),
    "one of a list": ("pte train --track tensorboard,w", {"tensorboard,wandb"}),
    "benchmarks": ("pte eval --bench aime", {"aime24", "aime25"}),
    "runs": ("pte report runs/a", {"runs/a", "runs/ab"}),
}


@pytest.mark.parametrize("name", OFFERED)
def test_what_the_shell_is_offered(name, tmp_path, monkeypatch):
    for run in ("a", "ab", "b"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        for file in ("config.json", "env.json"):
            (tmp_path / "runs" / run / file).write_text("{}")
    line, expected = OFFERED[name]
    monkeypatch.setenv("_PTE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert set(pte(cwd=tmp_path).stdout.split()) == expected


def test_completion_help_and_runs_import_no_torch(tmp_path):
    code = (
        "import sys\nfrom pte_cli.cli import complete\nfrom pte_cli.cli.app import app\n"
        "assert ('sliding' in dict(complete.plugins('evict')()))\n"
        "assert 'encoder.global_tokens=' in complete.assignments()\n"
        "import pte_cli.report.runs\n"
        "for line in (['runs', '--help'], ['report', '--help'], ['doctor', '--help']):\n"
        "    app(line, standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'peft', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_of_settings():
    names = list(setting_names(RunConfig))
    assert {"seed", "evict.frac", "data.columns.prompt", "encoder.options"} <= set(names)
    assert len(names) == len(set(names))


def test_progress_without_a_terminal_is_a_line_every_few_seconds(capsys, monkeypatch):
    clock = iter([100.0, 100.0, 101.0, 105.5, 105.5, 106.0, 106.0, 106.0])
    monkeypatch.setattr(ui.time, "monotonic", lambda: next(clock))
    with ui.StepProgress() as progress:
        for step in (1, 2, 3, 4):
            progress.step({"phase": "sft", "step": step, "loss": 1.5}, 4)
    printed = capsys.readouterr()
    # At 100 s, not at 101, at 105.5; and the last one always.
    assert printed.err.splitlines() == ["sft 1/4  loss 1.500", "sft 3/4  loss 1.500", "sft 4/4  loss 1.500"]
    assert (printed.out, "\x1b" in printed.err) == ("", False)


def test_no_color(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    console = ui.out()
    assert console.no_color
    with console.capture() as captured:
        console.print("plain", style="red")
    assert captured.get() == "plain\n"
