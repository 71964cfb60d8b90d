"""The model card of an export: what it is, how it was trained, what was measured, how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pte_cli import __version__
from pte_cli.config import RunConfig

BUILT_IN = {"tiny": 'pte_cli.__path__[0] + "/assets/tiny"'}
"""The built-in model, as Python finds it."""

MERGED = """```python
from transformers import AutoModelForCausalLM, {tokenizer}

model = AutoModelForCausalLM.from_pretrained("{folder}")
tokenizer = {tokenizer}.from_pretrained("{folder}")
```

The weights are ordinary; nothing of `pte` is needed. It was trained with a bounded KV cache: to have one at inference
too, `pte generate --model {folder} --evict {policy} --budget {budget}`.
"""

ADAPTER = """```python
import pte_cli  # pip install pte-cli; makes PEFT know the method
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(base, "{folder}")
```

{reason}

`RolloutEngine` of `pte_cli.rollout.engine` evicts and encodes while it generates; a plain `model.generate` keeps the
whole cache and runs the adapter as ordinary LoRA. `{settings}` holds the settings of the training run, for `--config`.
"""


def model_card(
    config: RunConfig, status: Mapping[str, Any], folder: str, reason: str | None, *, settings: str, tokenizer: str
) -> str:
    """The text of README.md.

    status: the run's status.json. reason: why weights aren't merged; None where they are. settings: the file of an
    adapter's training settings. tokenizer: the class that loads the tokenizer beside merged weights.
    """
    base, evict = config.model.name, config.evict
    local = "/" not in base or Path(base).exists()
    how = MERGED if reason is None else ADAPTER
    loading = how.format(
        folder=folder,
        base=BUILT_IN.get(base, json.dumps(base)),
        reason=reason,
        settings=settings,
        tokenizer=tokenizer,
        policy=evict.policy,
        budget=evict.budget,
    )
    front = [
        "---",
        *([] if local else [f"base_model: {json.dumps(base)}"]),
        f"library_name: {'transformers' if reason is None else 'peft'}",
        "pipeline_tag: text-generation",
        "tags: [pte, lora, bounded-kv-cache]",
        "---",
    ]
    rows = {
        "base model": base,
        "method": "Progressive Thought Encoding (arXiv 2602.16839)" if reason else "LoRA under a bounded KV cache",
        "encoder": with_options(config.encoder.name, config.encoder.options),
        "eviction policy": with_options(evict.policy, evict.options),
        "budget": f"{evict.budget} cached tokens per layer and head; {evict.frac:g} of the window leaves when full",
        "LoRA": f"rank {config.adapter.rank}, alpha {config.adapter.alpha or config.adapter.rank:g}, "
        f"on {', '.join(config.adapter.target_modules)}",
        "training": training(config, status),
        "trained on": config.data.source or with_options(config.task.name, config.task.options),
        "seed": str(config.seed),
        "written by": f"pte {__version__}",
    }
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
    what = "Merged weights" if reason is None else "Adapter"
    return "\n".join(
        [
            *front,
            f"# {what} trained by pte\n",
            table,
            "\n## Measured\n",
            measured(config, status),
            "\n## How to load it\n",
            loading,
        ]
    )


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """`sink (n_sink=4)`."""
    return f"{name} ({', '.join(f'{k}={v}' for k, v in options.items())})" if options else name


def training(config: RunConfig, status: Mapping[str, Any]) -> str:
    """The objective, its steps and learning rates in one line."""
    parts = []
    if "sft" in config.train.objective:
        sft = config.sft
        parts.append(f"SFT, {sft.steps} steps of {sft.batch}, learning rate {config.learning_rate('sft'):g}")
    if "grpo" in config.train.objective:
        grpo = config.grpo
        parts.append(
            f"GRPO, {grpo.steps} steps of {grpo.prompts} x {grpo.group_size}, "
            f"learning rate {config.learning_rate('grpo'):g}, KL weight {grpo.beta:g}"
        )
    state = status.get("state")
    return "; ".join(parts) + ("" if state == "finished" else f" (the run is {state or 'of unknown state'})")


def measured(config: RunConfig, status: Mapping[str, Any]) -> str:
    """Accuracy before and after, as training measured it; or that it was not."""
    result = status.get("result") or {}
    lines = [
        f"- {label}: {100 * a['accuracy']:.1f} % ({100 * a['low']:.1f} to {100 * a['high']:.1f}, 95 %), "
        f"{a['n']} held-out problems"
        for label, a in (("before training", result.get("before")), ("after training", result.get("after")))
        if a
    ]
    if not lines:
        return "Nothing was measured."
    where = config.data.source or config.task.name
    return "\n".join([f"Accuracy on `{where}`, greedy, under the budget above:\n", *lines])
