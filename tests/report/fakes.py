"""Sweeps whose runs were never made: their folders hold what we say."""

from __future__ import annotations

import json
import random

from pte_cli.report.cells import Cell, Question

PROMPT = 31


def cell(arm, seed=0, *, part="main", budget=48, bare=False, trained=None, origin=None, **values):
    """A cell; `_` in the name of a value stands for a dot."""
    dotted = {name.replace("_", ".", 1): value for name, value in values.items()}
    command = "eval" if bare or trained else "train"
    marks = [part, arm, *(f"{k}{v}" for k, v in (dotted | (origin or {})).items()), "" if bare else seed]
    key = f"{command}-{'-'.join(map(str, marks))}"
    return Cell(part, arm, dotted, seed, budget, key, trained, origin or {})


def write_run(folder, cell, right, *, lengths=None, losses=(), state=0, adapter=1000, speed=100.0):
    """What a finished run leaves behind. right: 0 or 1 for each problem."""
    run = folder / "runs" / cell.key
    run.mkdir(parents=True, exist_ok=True)
    lengths = lengths or [32] * len(right)
    after = {
        "accuracy": sum(right) / len(right),
        "mean_length": sum(lengths) / len(lengths),
        "evictions": 4.0,
        "cache_bytes": 2000 * (cell.budget or 100),
        "state_bytes": state,
        "adapter_bytes": adapter,
        "rows": len(right),
        "tokens_per_second": speed,
    }
    result = {"after": after, "peak_bytes": 2**20, "seconds": {"all": 1.0}}
    (run / "status.json").write_text(json.dumps({"state": "finished", "result": result}))
    records = [
        {"problem": i, "prompt": f"p{i}", "prompt_tokens": PROMPT, "right": bool(r), "length": length}
        for i, (r, length) in enumerate(zip(right, lengths, strict=True))
    ]
    (run / "held_out.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    steps = [{"step": i, "phase": "sft", "loss": loss} for i, loss in enumerate(losses, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in steps))


def question(folder, cells, **more):
    return Question("a sweep", tuple(cells), folder, **({"baseline": "lora_c"} | more))


def whole_sweep(folder, seeds=5, problems=200):
    """The paper's arms with an axis of budgets and one of lengths, outcomes drawn at rates of our choice."""
    rng = random.Random(0)

    def outcomes(rate):
        return [int(rng.random() < rate) for _ in range(problems)]

    cells = []
    for seed in range(seeds):
        for arm, rate, final in (("lora", 0.95, 0.1), ("lora_c", 0.22, 0.5), ("ttt", 0.4, 0.4), ("pte", 0.56, 0.3)):
            budget = None if arm == "lora" else 48
            state = 10_000 if arm in ("ttt", "pte") else 0
            made = cell(arm, seed, budget=budget)
            losses = [final + 2 / (1 + i / 20) + rng.gauss(0, 0.05) for i in range(300)]
            write_run(folder, made, outcomes(rate + rng.gauss(0, 0.02)), losses=losses, state=state)
            cells.append(made)
            if arm in ("lora_c", "pte"):
                for at in (39, 43, 57, 63):
                    point = cell(arm, seed, part="window", budget=at, evict_budget=at)
                    write_run(folder, point, outcomes(min(0.97, rate * (at - 31) / 17)), state=state)
                    cells.append(point)
                for entries in (4, 8, 12):
                    point = cell(arm, seed, part="length", trained=made.key, task_entries=entries)
                    write_run(folder, point, outcomes(rate * 8 / entries / 2), lengths=[2 * entries + 8] * problems)
                    cells.append(point)
    bare = cell("baseline", bare=True)
    write_run(folder, bare, outcomes(0.12), adapter=0)
    return [bare, *cells]
