"""TRL's half of trl_step.py, which runs it in an environment of its own: GRPOTrainer, LoRA and the full cache.

Each line on the standard input, `time` or `memory`, is one training step; its reading is one line of JSON. The end of
the input is the end of the training.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

RATE = 1e-5
STEPS = 100
"""More than are asked for."""


def rewards(completions: Sequence[Sequence[int]], tokens: int) -> list[float]:
    """Of a group, from its token ids alone. ValueError unless every completion is whole and teaches something."""
    if any(len(ids) != tokens for ids in completions):
        raise ValueError(f"completions of {[len(ids) for ids in completions]} tokens instead of {tokens}")
    found = [sum(ids) % 997 / 997 for ids in completions]
    mean = sum(found) / len(found)
    if any(abs(value - mean) < 1e-6 for value in found):
        raise ValueError("a completion with the mean reward teaches nothing")
    return found


def moments(optimizer: Any) -> Iterator[Any]:
    """The tensors that an optimizer keeps."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if hasattr(value, "untyped_storage"))


def live_bytes() -> Any:
    """pte's counter, from its file: it needs nothing but torch, and pte is not installed here."""
    path = Path(__file__).parent.parent / "pte_cli" / "profile" / "live.py"
    spec = importlib.util.spec_from_file_location("live", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["live"] = module
    spec.loader.exec_module(module)
    return module.LiveBytes()


def main() -> None:
    settings = json.loads(sys.argv[1])
    with redirect_stdout(sys.stderr):
        train(settings)


def train(settings: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)

    class Steps(TrainerCallback):
        """Waits for the next step's line, and answers it."""

        live: Any = None

        def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            asked = sys.stdin.readline().strip()
            if not asked:
                sys.exit()
            if asked == "memory":
                self.live = live_bytes()
                self.live.watch(*model.parameters(), *model.buffers(), *moments(optimizer))
                self.live.__enter__()
            self.start = time.process_time(), time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            cpu, wall = time.process_time() - self.start[0], time.perf_counter() - self.start[1]
            answer = {"cpu": cpu, "wall": wall}
            if self.live is not None:
                self.live.__exit__(None, None, None)
                answer["bytes"], self.live = self.live.peak, None
            print(json.dumps(answer), file=sys.__stdout__, flush=True)

    tokens, group = settings["tokens"], settings["group"]
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32, use_safetensors=True)
    rank = settings["rank"]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completion_ids, **_: rewards(completion_ids, tokens),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        train_dataset=Dataset.from_dict({"prompt": settings["prompts"]}),
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=settings["targets"]
        ),
        callbacks=[Steps()],
        args=GRPOConfig(
            output_dir=str(Path(settings["model"]) / "out"),
            per_device_train_batch_size=group,
            gradient_accumulation_steps=1,
            num_generations=group,
            num_iterations=1,
            max_completion_length=tokens,
            max_steps=STEPS,
            learning_rate=RATE,
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=0.0,
            loss_type="dapo",
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            disable_dropout=True,
            gradient_checkpointing=settings["checkpointing"],
            bf16=False,
            use_cpu=True,
            shuffle_dataset=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    wide = {p.dtype for p in trainer.model.parameters()}
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    versions = {name: version(name) for name in ("trl", "transformers", "peft", "torch")}
    ready = {"versions": versions, "dtypes": [str(d) for d in wide], "trained": trained}
    print(json.dumps(ready), file=sys.__stdout__, flush=True)
    trainer.train()


if __name__ == "__main__":
    main()
