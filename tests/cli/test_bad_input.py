"""Wrong input: one line that says what is wrong, exit code 2, at most 3 seconds, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import pytest
from running import pte

import pte_cli.rollout.prepare  # noqa: F401  what takes seconds to import is not what is timed here
from pte_cli.runs import RunDir
from pte_cli.tasks.rewards import NamedReward

ROW = '{"problem": "? a : a : 4 =", "answer": "! a 4"}\n'
ADAPTER = {"r/config.json": "{}", "r/adapter/adapter_config.json": '{"peft_type": "PTE", "encoder": "pte", "r": 4}'}
WEIGHTS = "r/adapter/adapter_model.safetensors"
SWEEP = 'schema = 1\n[sweep]\nname = "s"\n[runs.a]\n'
PROMPT = "? c a : a b c : 4 7 7 ="
LONG = "x" * 300
GRPO = "train --data d.jsonl --objective grpo --out new"

BAD: dict[str, tuple[str | list[str], str] | tuple[str | list[str], str, dict[str, str | bytes]]] = {
    # ---- the command line
    "misspelt option": ("train --budgett 3", "no such option: --budgett"),
    "option without value": ("train --budget", "option '--budget' requires an argument"),
    "word for a number": ("train --budget many", "--budget 'many': input should be a valid integer"),
    "unknown command": ("trian", "no such command 'trian'; did you mean 'train'"),
    "one argument too many": ("train foo", "unexpected extra argument(s) (foo); see pte train --help"),
    "argument missing": ("export r", "missing argument"),
    "below an option's least": ("sweep s.toml --jobs 0", "--jobs '0': input should be greater than or equal to 1"),
    # ---- settings
    "frac zero": ("train --frac 0", "evict.frac = 0.0: must be more than 0"),
    "frac above one": ("train --frac 1.5", "evict.frac = 1.5: must be at most 1"),
    "frac is no number": ("train --frac nan", "evict.frac = nan: input should be a finite number"),
    "endless learning rate": ("train --set sft.learning_rate=inf", "sft.learning_rate = inf: input should be a finite"),
    "seed too large": ("train --seed 4294967296", "seed = 4294967296: must be less than 4294967296"),
    "negative seed": ("train --seed -1", "seed = -1: must be at least 0"),
    "unknown encoder": ("train --encoder ptee", "did you mean 'pte'"),
    "unknown policy": ("train --evict slidign", "did you mean 'sliding'"),
    "objective": ("train --objective ppo", "must be 'sft', 'grpo' or 'sft+grpo'"),
    "budget too small for the prompt": ("train --budget 33", "evict.budget = 33: a prompt of 31 tokens"),
    "group of one": ("train --group-size 1", "grpo.group_size = 1: must be at least 2"),
    "unknown setting": ("train --set evict.windw=3", "evict.windw = 3: unknown setting"),
    "a section as a value": ("train --set evict=3", "evict = 3: is a section; set one of its settings: policy, budget"),
    "no value": ("train --set evict.frac", "--set 'evict.frac': expected KEY=VALUE, for example"),
    "no key": ("train --set =3", "--set '=3': expected KEY=VALUE, for example"),
    "no linear layers": ("train --set adapter.target_modules=[]", "expected names of linear layers, at least one"),
    "unknown option": ("train --set encoder.options.globals=3", "did you mean 'global_tokens'"),
    "option of the wrong type": ("train --set encoder.global_tokens=many", "encoder.options.global_tokens = 'many'"),
    "unknown option of a policy": ("train --evict sink --set evict.options.sinks=3", "did you mean 'n_sink'"),
    "unknown score": ("train --evict importance --set evict.options.score=h2o", "'attention', 'window'"),
    "all prompts pinned by the policy": (
        "train --evict sink --set evict.options.n_sink=46",
        "evict.budget = 48: 46 pinned tokens leave 2 for thinking; use at least 50",
    ),
    "likelihood of tokens that differ by layer": (
        "train --evict importance --encoder ttt --set encoder.options.objective=nll",
        "drops different ones in each layer",
    ),
    "unknown tracker": ("train --track foo", "must be 'tensorboard', 'trackio' or 'wandb'"),
    "greedy grpo": (
        "train --objective grpo --set sampling.temperature=0",
        "sampling.temperature = 0.0: all completions of a group would be equal",
    ),
    # ---- configuration files
    "missing file": ("train --config nowhere.toml", "'nowhere.toml': can't be read"),
    "broken TOML": ("train --config c.toml", "--config 'c.toml': Expected ']'", {"c.toml": "[evict\n"}),
    "not UTF-8": ("train --config c.toml", "--config 'c.toml': can't be read", {"c.toml": b"\xff\xfe"}),
    "wrong type in TOML": ("train --config c.toml", "evict.budget = 'big'", {"c.toml": "[evict]\nbudget = 'big'"}),
    "misspelt section": (
        "train --config c.toml",
        "evikt.budget = 60: unknown setting; did you mean 'evict.budget'?",
        {"c.toml": "[evikt]\nbudget = 60"},
    ),
    "a list for a table": ("train --config c.json", "expected a table of settings, got list", {"c.json": "[]"}),
    "brackets without end": ("train --config c.json", "--config 'c.json': maximum recursion", {"c.json": "[" * 10**5}),
    # ---- where to write
    "unwritable folder": ("train --out /proc/pte/run", "--out '/proc/pte/run': "),
    "out is a file": ("train --out taken/run", "is a file, not a folder", {"taken": ""}),
    "a run is there already": ("train --out old", "holds a run already", {"old/config.json": "{}"}),
    "name too long": (["train", "--out", LONG], "File name too long; choose another folder"),
    "export over something": ("export r o", "'o': is there already; choose a new folder", {"o": "mine"}),
    "name of an export too long": (["export", "r", LONG], "File name too long; choose another folder", ADAPTER),
    "grades into a folder": (
        "eval --grade g.jsonl --out o",
        "--out o: is a folder; name a file for the grades",
        {"g.jsonl": '{"answer": "2", "completion": "x"}\n', "o/kept": ""},
    ),
    "profile into a file": ("profile --out o", "--out 'o': 'o' is a file, not a folder", {"o": "mine"}),
    "plugin over something": (
        "plugins new my-x --kind evict",
        "exists already; nothing is overwritten",
        {"my-x/kept": "mine"},
    ),
    # ---- models
    "no such model": ("train --model nowhere", "model.name = 'nowhere': neither 'tiny', a folder"),
    "empty folder for a model": ("train --model m", "'m': a folder without a model's config.json", {"m/kept": ""}),
    "broken config.json": ("train --model m", "its config.json can't be read", {"m/config.json": "{"}),
    "sizes that are none": (
        "profile m",
        "'m': its config.json has hidden_size = 'big'; it needs to be 1 or more",
        {"m/config.json": '{"model_type": "qwen2", "hidden_size": "big"}', "m/model.safetensors": ""},
    ),
    "pickled weights": (
        "train --model m",
        "its weights are pickled (pytorch_model.bin)",
        {"m/config.json": '{"model_type": "qwen2"}', "m/pytorch_model.bin": "x"},
    ),
    "kind of model": ("train --model m", "its type 'foo' is not supported", {"m/config.json": '{"model_type": "foo"}'}),
    "no GGUF": ("train --model m.gguf", "not a readable GGUF file", {"m.gguf": "no"}),
    "unknown preset": ("profile preset:foo", "unknown preset; known: "),
    "device": ("train --device gpu", "model.device = 'gpu': expected auto, cpu, cuda, cuda:N or mps"),
    # ---- data
    "no such data": ("train --data no.jsonl", "no such file"),
    "unknown kind of data": ("train --data d.xlsx", "unknown kind of file; use .jsonl", {"d.xlsx": ""}),
    "empty data": (GRPO, "no rows in it", {"d.jsonl": "\n"}),
    "broken line": (GRPO, "d.jsonl:2: not valid JSON", {"d.jsonl": ROW + "{oops\n"}),
    "NaN in data": (GRPO, "d.jsonl:1: not valid JSON (NaN", {"d.jsonl": '{"problem": "a", "answer": NaN}\n'}),
    "missing column": (GRPO, "data.columns.prompt: no column called prompt or", {"d.jsonl": '{"x": 1}\n'}),
    "no answers": (GRPO, "no column with answers in the data", {"d.jsonl": '{"problem": "? a"}\n'}),
    "number for a prompt": (GRPO, "d.jsonl:1 is of type int; use text", {"d.jsonl": '{"problem": 3, "answer": 3}\n'}),
    "half a surrogate pair": (
        GRPO,
        "d.jsonl:1: 'problem' holds half a surrogate pair, which is no text; leave it out",
        {"d.jsonl": '{"problem": "\\ud800", "answer": 1}\n'},
    ),
    "split outside the folder": (
        "train --data d --set data.split=../other",
        "data.split = '../other': is no name of a file",
        {"d/train.jsonl": ROW, "other.jsonl": ROW},
    ),
    "unknown reward": (f"{GRPO} --reward foo", "reward.names = 'foo': no such plugin", {"d.jsonl": ROW * 4}),
    "weights without rewards": (
        f"{GRPO} --reward math-verify --set reward.weights=1,2",
        "2 for 1 reward.names",
        {"d.jsonl": ROW * 4},
    ),
    # ---- runs
    "no such run": ("eval nowhere", "'nowhere' is not a run: it has no config.json"),
    "run without adapter": ("eval r", "has no adapter yet", {"r/config.json": "{}"}),
    "settings that are a list": ("eval r", "its settings can't be read", {"r/config.json": "[]"}),
    "adapter without weights": ("eval r", "has no adapter_model.safetensors; copy it whole, or train again", ADAPTER),
    "damaged adapter": (
        ["generate", PROMPT, "--run", "r"],
        "the adapter in 'r/adapter': can't be read (Error while deserializing header",
        {**ADAPTER, WEIGHTS: "half"},
    ),
    "adapter of another kind": (
        "export r o",
        "is no adapter of ours",
        {**ADAPTER, WEIGHTS: "x", "r/adapter/adapter_config.json": '{"peft_type": "LORA"}'},
    ),
    "another encoder": ("eval r --encoder none", "was trained with 'pte'", {"r/config.json": "{}"}),
    "code of its own, named by the run only": (
        "eval r",
        "'r': its model 'them/theirs' brings code of its own; look at it, and add --trust-remote-code to run it",
        {"r/config.json": '{"model": {"name": "them/theirs", "trust_remote_code": true}}'},
    ),
    "setting beside resume": ("train --resume r --seed 3", "leave it out", {"r/config.json": "{}"}),
    # ---- eval, generate
    "budget of an evaluation": ("eval --budget 20", "evict.budget = 20"),
    "unknown benchmark": ("eval --bench gsmk", "--bench gsmk: unknown benchmark; did you mean 'gsm8k'"),
    "no folder of benchmarks": ("eval --bench gsm8k --bench-dir no", "--bench-dir no: there is no such folder"),
    "benchmark outside the folder": (
        "eval --bench ../b --bench-dir e",
        "--bench ../b: is no name of a file in e; name it without a folder",
        {"e/kept": "", "b.jsonl": ROW},
    ),
    "no benchmarks in it": ("eval --bench gsm8k --bench-dir e", "there are no .jsonl files in it", {"e/kept": ""}),
    "row without answer": ("eval --bench b.jsonl", "b.jsonl, line 1: no 'answer'", {"b.jsonl": '{"problem": "x"}\n'}),
    "more samples than there are": (
        "eval --grade g.jsonl --k 8",
        "k = 8: g.jsonl has 1 sample of a problem; k can be 1 to 1",
        {"g.jsonl": '{"answer": "2", "completion": "x"}\n'},
    ),
    "prompt that is no text": (["generate", "\udcff"], "the prompt '\\udcff': is not UTF-8 text"),
    "unknown word": ("generate hello", "the model's tokenizer has no token for 'hello'"),
    # ---- sweep, profile, plugins
    "no sweep": ("sweep none.toml", "none.toml: can't be read"),
    "no table sweep": ("sweep s.toml", "schema = None: this version reads schema = 1", {"s.toml": ""}),
    "name that leaves the folder": ("sweep s.toml", "sweep.name = '../x'", {"s.toml": SWEEP.replace('"s"', '"../x"')}),
    "run without a name": ("sweep s.toml", "may not be empty", {"s.toml": SWEEP.replace("[runs.a]", '[runs.""]')}),
    "brackets without end in a sweep": ("sweep s.toml", "s.toml: TOML inline arrays", {"s.toml": "a = " + "[" * 5000}),
    "wrong setting of a run": ("sweep s.toml", "[runs.a]: evict.budget = 3", {"s.toml": SWEEP + "evict.budget = 3"}),
    "unknown launcher": (
        "sweep s.toml --out new",
        "launch.engine = 'foo': no such plugin",
        {"s.toml": SWEEP.replace("[runs", 'launch.engine = "foo"\n[runs')},
    ),
    "sweep into a file": ("sweep s.toml --out o", "--out 'o': File exists", {"s.toml": SWEEP, "o": "mine"}),
    "report of a profile": ("profile --report memroy", "did you mean 'memory'"),
    "memory without unit": ("profile --memory lots", "expected a number and a unit, for example 24GiB"),
    "kind of plugin": ("plugins list --kind foo", "--kind 'foo': no such kind; known: "),
    "no such plugin": ("plugins info foo", "'foo': no such plugin; known: "),
    "plugin that leaves the folder": ("plugins new ../x --kind evict", "plugin name '../x': lower-case letters"),
}  # fmt: skip


def tree(folder):
    """Every file and folder, with what is in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments, message, *files = BAD[name]
    for path, content in (files[0] if files else {}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    before, start = tree(tmp_path), time.monotonic()
    done = pte(*(arguments.split() if isinstance(arguments, str) else arguments), cwd=tmp_path)
    seconds = time.monotonic() - start
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert seconds <= 3
    assert tree(tmp_path) == before


def test_a_variable_that_is_no_setting_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_DEBUG", "1")
    done = pte("train", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: PTE_DEBUG = '1': no setting; unset it, or write PTE_SECTION__NAME\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "adapter.target_modules=k_prj"], "has no layers of these names; its linear layers: down_proj"),
        (
            ["--data", "../d.jsonl", "--budget", "20"],
            "67% of the completions' tokens are unknown to its tokenizer, first at d.jsonl:1; use a model that knows",
        ),
        (["--device", "cuda:7"], "model.device = 'cuda:7': not available here"),
    ],
)
def test_what_only_the_model_can_tell_leaves_nothing_either(arguments, message, tmp_path):
    if "cuda:7" in arguments and os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is such a device")
    (tmp_path / "d.jsonl").write_text('{"prompt": "? a : a : 4 =", "completion": "hello world"}\n')
    (tmp_path / "here").mkdir()
    done = pte("train", "--out", "new/run", *arguments, cwd=tmp_path / "here")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
    assert list((tmp_path / "here").iterdir()) == []


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")


def test_a_disk_that_is_full_from_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDir, "_replace", full)
    done = pte("train", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: --out 'run': No space left on device; choose a folder that can be written\n"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_ends_the_run_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDir, "log", full)
    done = pte("train", "--out", "run", "--sft-steps", "1", "--problems", "1", "--set", "sft.batch=1", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: 'metrics.jsonl': No space left on device"
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


def test_a_folder_that_may_only_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    for command in (
        ["train", "--out", "run"],
        ["profile", "--out", "run"],
        ["plugins", "new", "my-x", "--kind", "evict"],
    ):
        done = pte(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "is not writable; choose another folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_reward_that_is_no_number_stops_the_run_with_its_row(tmp_path, monkeypatch):
    (tmp_path / "d.jsonl").write_text(ROW * 3)
    nan = NamedReward("mine", lambda prompts, *_, **__: [float("nan")] * len(prompts))
    monkeypatch.setattr("pte_cli.rollout.prepare.build_rewards", lambda *_: [nan])
    small = ["--set", "grpo.prompts=1", "--set", "grpo.group_size=2", "--set", "sampling.max_new_tokens=2"]
    done = pte(*GRPO.split(), *small, "--set", "data.eval_fraction=0", "--budget", "20", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: reward 'mine' returned nan for row d.jsonl:")
    assert last.endswith("return None for no reward, or a number")


def test_from_a_cold_start_it_takes_less_than_three_seconds(tmp_path):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", "train", "--budget", "33"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert time.monotonic() - start <= 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["eval", "--help"],
        ["generate", "--help"],
        ["export", "--help"],
        ["train", "--dry-run"],
        ["--version"],
    ],
)
def test_help_and_dry_run_import_no_torch(arguments, tmp_path):
    code = (
        "import sys\nfrom pte_cli.cli.app import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as done: assert not done.code, done.code\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broken_plugin_is_one_line_and_the_command_goes_on(tmp_path):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pte]\nbad = broken_module\n")
    (tmp_path / "broken_module.py").write_text("raise SystemExit('no licence')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", "train", "--dry-run", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == "plugin bad of broken left out: SystemExit: no licence\n"
    assert json.loads(done.stdout)["config"]["encoder"]["name"] == "pte"
