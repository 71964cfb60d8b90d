"""One GRPO step against TRL's: `python benchmarks/trl_step.py`; a quarter of an hour and more.

The same random model (4 layers, hidden size 128, vocabulary 512), prompts, group of 8, number of generated tokens, LoRA
rank and targets, in float32 with one thread: pte's trainer with a bounded cache, TRL's GRPOTrainer with the full one.
TRL gets an environment of its own (`--env`), made by the first run, and runs there as a process of its own. Its rows:

TRL                 8 rows in one pass, everything kept for the backward pass: the quickest
TRL, checkpointing  the same with gradient checkpointing, which is its default

Steps take turns, so that all meet the same neighbours on the machine; one of each is not counted. Seconds are the
process's CPU time, the median of `--repeat`; the spread is worst over best. Bytes are the peak of live tensors, weights
and optimizer included, in one more step, counted on both sides by pte_cli/profile/live.py. Ratios are to the row TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from speed import PROMPT, RANK, ROWS, prompts, sliding, small_base
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl_side import RATE, STEPS, moments, rewards

from pte_cli.config import load_config
from pte_cli.model.adapter import LINEARS, add_adapter
from pte_cli.profile.live import LiveBytes
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.tasks.examples import Completion, Question, Scores
from pte_cli.train.loop import Trainer

VOCAB = 512
TRL = "TRL"
Reading = dict[str, float]


class Asked:
    """pte's examples: the prompts one after the other, of which each completion has the reward that TRL's has."""

    scored = True
    codec = SimpleNamespace(ends=(), tokenizer=range(VOCAB))

    def __init__(self, asked: Sequence[Sequence[int]], tokens: int) -> None:
        self.left, self.tokens = iter(asked), tokens

    def questions(self, count: int) -> list[Question]:
        return [Question(tuple(next(self.left)), None) for _ in range(count)]

    def score(self, questions: Sequence[Question], completions: Sequence[Completion]) -> Scores:
        found = rewards([completion.ids for completion in completions], self.tokens)
        return Scores(found, [None] * len(found))


class Ours:
    """A trainer of pte; each call is one step."""

    def __init__(self, asked: Sequence[Sequence[int]], tokens: int, budget: int, gradient: str) -> None:
        flags = {
            "train.objective": "grpo",
            "train.gradient": gradient,
            "train.completions_every": 0,
            "evict.budget": budget,
            "grpo.steps": STEPS,
            "grpo.prompts": 1,
            "grpo.group_size": ROWS,
            "grpo.learning_rate": RATE,
            "sampling.max_new_tokens": tokens,
            "model.device": "cpu",
        }
        self.model = BoundedModel(add_adapter(small_base(), encoder="pte", rank=RANK))
        self.logged: dict[str, Any] = {}
        config = load_config(env={}, flags=flags)
        self.trainer = Trainer(config, self.model, sliding(), Asked(asked, tokens), self.logged.update)
        self.steps = self.trainer.run()

    def __call__(self, what: str) -> Reading:
        start = time.process_time(), time.perf_counter()
        with LiveBytes() if what == "memory" else ExitStack() as live:
            if what == "memory":
                whole = self.model.model
                live.watch(*whole.parameters(), *whole.buffers(), *moments(self.trainer.optimizer))
            next(self.steps)
        found = {"cpu": time.process_time() - start[0], "wall": time.perf_counter() - start[1]}
        if self.logged["completions/learnt_from"] != ROWS:
            raise RuntimeError(f"{self.logged['completions/learnt_from']} completions taught instead of {ROWS}")
        return found | ({"bytes": live.peak} if what == "memory" else {})


class Theirs:
    """TRL in its own environment; each call is one step. RuntimeError, with what it said, where it ends early."""

    def __init__(self, python: Path, folder: Path, log: Path, settings: dict[str, Any]) -> None:
        self.log = log
        offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        self.process = subprocess.Popen(
            [python, Path(__file__).with_name("trl_side.py"), json.dumps({"model": str(folder), **settings})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=os.environ | offline,
            text=True,
        )
        self.facts = self._answer()

    def __call__(self, what: str) -> Reading:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"TRL ended early:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)


def environment(folder: Path, trl: str) -> Path:
    """The Python of an environment with TRL and this one's torch, transformers and PEFT; made where there is none."""
    python = folder / "bin" / "python"
    tried = f"from importlib.metadata import version; import sys, trl; sys.exit(version('trl') != {trl!r})"
    if not python.exists() or subprocess.run([python, "-c", tried], capture_output=True).returncode:
        print(f"making an environment with TRL {trl} in {folder}", flush=True)
        venv.create(folder, with_pip=True)
        same = [f"{name}=={version(name).split('+')[0]}" for name in ("torch", "transformers", "peft", "datasets")]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *same, f"trl=={trl}", "accelerate"], check=True)
    return python


def save(folder: Path) -> None:
    """The model, and a tokenizer whose n-th word is `n`. Its end token is none that the model can write."""
    small_base().save_pretrained(folder)
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCAB)} | {"<end>": VOCAB}, unk_token="<end>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>").save_pretrained(folder)


def readings(arms: dict[str, Any], repeat: int) -> Iterator[tuple[str, str, Reading]]:
    """(arm, what, reading), the arms taking turns; the first step of each is made and left out."""
    for arm in arms.values():
        arm("time")
    for what in ["time"] * repeat + ["memory"]:
        for name, arm in arms.items():
            yield name, what, arm(what)


def compare(tokens: int, args: argparse.Namespace, python: Path, work: Path) -> None:
    """Print the table for one number of tokens."""
    asked = prompts(STEPS, VOCAB)
    settings = {
        "tokens": tokens,
        "group": ROWS,
        "rank": RANK,
        "targets": list(LINEARS),
        "prompts": [" ".join(map(str, prompt)) for prompt in asked],
    }
    with ExitStack() as stack:
        arms: dict[str, Any] = {}
        for name, checkpointing in ((TRL, False), (f"{TRL}, checkpointing", True)):
            log = work / f"{checkpointing}.log"
            arms[name] = Theirs(python, work, log, settings | {"checkpointing": checkpointing})
            stack.callback(arms[name].close)
        print(f"{tokens} tokens after {PROMPT}, {ROWS} rows; TRL's side: {arms[TRL].facts}", flush=True)
        for budget in args.budget:
            for gradient in ("truncated", "exact"):
                name = f"pte, budget {budget}, {gradient}"
                arms[name] = Ours(asked, tokens, budget, gradient)
        times: dict[str, list[float]] = {name: [] for name in arms}
        walls: dict[str, list[float]] = {name: [] for name in arms}
        peaks: dict[str, float] = {}
        for name, what, reading in readings(arms, args.repeat):
            print(f"  {name}: {what} {reading}", file=sys.stderr, flush=True)
            if what == "memory":
                peaks[name] = reading["bytes"]
            else:
                times[name].append(reading["cpu"])
                walls[name].append(reading["wall"])
    print(f"{'':32} {'CPU s':>7} {'ratio':>6} {'spread':>6} {'wall s':>7} {'peak bytes':>14} {'ratio':>6}")
    for name, seconds in times.items():
        spent = median(seconds)
        print(
            f"{name:32} {spent:7.2f} {spent / median(times[TRL]):6.2f} {max(seconds) / min(seconds):6.2f} "
            f"{median(walls[name]):7.2f} {peaks[name]:14,} {peaks[name] / peaks[TRL]:6.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048], help="generated for each row")
    parser.add_argument("--budget", type=int, nargs="+", default=[80, 256], help="of pte's cache, prompt included")
    parser.add_argument("--repeat", type=int, default=3, help="timed steps of each row")
    parser.add_argument("--trl", default="1.16.0", help="TRL's version")
    parser.add_argument("--env", type=Path, help="TRL's environment, made where it isn't there and kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    python = environment(args.env or Path(tempfile.gettempdir()) / f"pte-trl-{args.trl}", args.trl)
    with tempfile.TemporaryDirectory() as work:
        save(Path(work))
        for tokens in args.tokens:
            compare(tokens, args, python, Path(work))


if __name__ == "__main__":
    main()
