"""The training loop: data in, optimizer steps and metrics out. All that changes during training lives here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from pte_cli.api import EvictionPolicy
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Trace
from pte_cli.tasks.codec import Codec
from pte_cli.tasks.examples import Completion, Examples, Question, Scores
from pte_cli.train.checkpoint import Checkpoint, Tensors
from pte_cli.train.clock import Clock
from pte_cli.train.grpo import Grpo, Table
from pte_cli.train.metrics import Metrics, device_metrics, shape_metrics, state_metrics
from pte_cli.train.passes import Passes
from pte_cli.train.processes import Processes
from pte_cli.train.rollouts import Rollout, rollout_of
from pte_cli.train.sft import likelihood_loss, token_weights, worked_traces

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
ROLLOUT, RANDOM = "rollout.", "random."


class Trainer:
    """Trains the adapter and encoder of one model on one kind of examples by SFT, GRPO, or one after the other.

    `log` receives the metrics of every step, in every process. Same configuration, same machine, same numbers: also
    after `load_state` of what `state` gave.
    """

    def __init__(
        self,
        config: RunConfig,
        model: BoundedModel,
        policy: EvictionPolicy,
        examples: Examples,
        log: Callable[[Metrics], None],
        *,
        processes: Processes | None = None,
        table: Table | None = None,
    ) -> None:
        self.config, self.model, self.policy = config, model, policy
        self.examples, self.log = examples, log
        self.processes = processes or Processes(config.model.device)
        self.budget = Budget(config.evict.budget if policy.bounded else None, config.evict.frac)
        self.sampling = sampling_of(config, examples.codec)
        self.engine = RolloutEngine(model, policy, self.budget, self.sampling, batch=config.sampling.rows)
        self.clock = Clock(model.device)
        self.passes = Passes(model, policy, config.train, self.sampling.temperature, self.sampling.vocab)
        self.groups = Grpo(
            config.grpo,
            self.engine,
            self.passes,
            examples,
            self.processes,
            self.clock,
            lambda questions, traces: self.score(questions, traces),
            table,
        )
        encoder = {id(p) for p in model.encoder.parameters()} if model.encoder is not None else set()
        self.trained = {name: p for name, p in model.model.named_parameters() if p.requires_grad}
        self.lora = [p for p in self.trained.values() if id(p) not in encoder]
        self.encoder = [p for p in self.trained.values() if id(p) in encoder]
        if not self.trained:
            raise UsageError("adapter.target_modules: nothing would be trained")
        self.step = 0
        self.optimizer: torch.optim.Optimizer | None = None
        self.buffer: Rollout | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.config.steps

    def run(self) -> Iterator[int]:
        """All steps that are left; after each, its number, so that the caller may save or stop."""
        while self.step < self.steps:
            phase, done, steps = self.place()
            if done == 0 or self.optimizer is None:
                self.optimizer = self._new_optimizer(phase)
            self.clock.restart()
            self.passes.last_state = {}
            start = time.perf_counter()
            metrics = self.sft() if phase == "sft" else self.grpo(done)
            share = linear_schedule(done, steps, self.config.train.warmup)
            with self.clock("update"):
                norm = self.update(share)
            self.step += 1
            seconds = self.clock.seconds | {"step": time.perf_counter() - start}
            metrics |= {"grad_norm": norm, "learning_rate": self.config.learning_rate(phase) * share}
            metrics |= state_metrics(self.model, self.passes.last_state) | device_metrics(self.model.device)
            metrics |= {f"seconds/{name}": spent for name, spent in seconds.items()}
            self.log({"step": self.step, "phase": phase, **metrics})
            yield self.step

    def update(self, share: float) -> float:
        """One optimizer step at this share of the peak learning rate; the gradient's norm before clipping."""
        trained = self.lora + self.encoder
        self.processes.sum_gradients(trained)
        norm = torch.nn.utils.clip_grad_norm_(trained, self.config.train.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * share
        # Parameters without a gradient stay as they are: a step in which nothing was learnt moves nothing.
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item()

    def sft(self) -> Metrics:
        """Gradients of one batch of worked examples under the bounded cache."""
        examples = self.examples.worked(self.config.sft.batch)
        weights = token_weights(examples, self.config.sft.answer_weight)
        mine = list(self.processes.share(len(examples)))
        weights = weights[mine].to(self.model.device)
        traces = worked_traces([examples[i] for i in mine], self.policy, self.budget.tokens, self.budget.frac)
        loss = 0.0
        if traces:
            with self.clock("replay"):
                loss, _ = self.passes.backward(traces, lambda rows: likelihood_loss(weights[rows]))
        tokens = sum(len(example.completion) for example in examples)
        return {
            "loss": sum(self.processes.gather([loss])),
            "num_tokens": tokens,
            "tokens_per_second/replay": tokens / self.clock.seconds.get("replay", float("inf")),
            **shape_metrics(traces),
        }

    def grpo(self, done: int = 0) -> Metrics:
        """Gradients of one update: on a new rollout, or on the last one while it has updates left."""
        iteration = done % self.config.grpo.num_iterations
        metrics: Metrics = {}
        if iteration == 0 or self.buffer is None:
            self.engine.peak_cache_bytes = 0
            self.buffer = self.groups.rollout(rollout_seed(self.config.seed, self.step + 1))
            metrics = {**self.buffer.metrics, "cache_bytes": self.engine.peak_cache_bytes}
        metrics |= self.groups.update(self.buffer, first=iteration == 0)
        if iteration == self.config.grpo.num_iterations - 1:
            self.buffer = None
        seconds, tokens = self.clock.seconds, metrics.get("num_tokens", 0)
        metrics |= {
            f"tokens_per_second/{part}": tokens / seconds[part]
            for part in ("rollout", "replay")
            if tokens and seconds.get(part)
        }
        return metrics

    def score(self, questions: Sequence[Question], traces: Sequence[Trace]) -> Scores:
        """What each completion is worth."""
        return score_traces(self.examples, questions, traces)

    def state(self) -> Checkpoint:
        """Everything `load_state` needs to go on from here. Every process must ask; each gets the whole."""
        own: Tensors = {f"{RANDOM}torch": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            own[f"{RANDOM}cuda"] = torch.cuda.get_rng_state(self.model.device)
        if self.buffer is not None:
            own |= {f"{ROLLOUT}{name}": tensor for name, tensor in self.buffer.tensors().items()}
        numpy = np.random.get_state()
        version, words, gauss = random.getstate()
        facts = {"python": [version, list(words), gauss], "numpy": [numpy[0], numpy[1].tolist(), *numpy[2:]]}
        tensors: dict[str, Tensors] = {"weights": dict(self.trained), "optimizer": self._moments()}
        for rank, group in enumerate(self.processes.gather([{name: t.cpu() for name, t in own.items()}])):
            tensors[f"process-{rank}"] = group
        state = {
            "step": self.step,
            "examples": self.examples.position(),
            "random": self.processes.gather([facts]),
            "processes": self.processes.count,
        }
        return Checkpoint(state, tensors)

    def load_state(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a run with the same settings. UsageError for another number of processes."""
        state = checkpoint.state
        if state["processes"] != self.processes.count:
            raise UsageError(
                f"--resume: the run was made by {state['processes']} processes, this is {self.processes.count}; "
                f"start as many"
            )
        self.step = state["step"]
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(checkpoint.tensors["weights"][name])
        phase, done, _ = self.place()
        if done:
            self.optimizer = self._new_optimizer(phase)
            self._load_moments(checkpoint.tensors["optimizer"])
        self.examples.go_to(state["examples"])
        own = checkpoint.tensors[f"process-{self.processes.rank}"]
        rollout = {name.removeprefix(ROLLOUT): t for name, t in own.items() if name.startswith(ROLLOUT)}
        self.buffer = rollout_of(rollout, self.model.device) if rollout else None
        facts = state["random"][self.processes.rank]
        version, words, gauss = facts["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *rest = facts["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(own[f"{RANDOM}torch"])
        if f"{RANDOM}cuda" in own:
            torch.cuda.set_rng_state(own[f"{RANDOM}cuda"], self.model.device)

    def place(self) -> tuple[str, int, int]:
        """The phase the next step belongs to, how many of its steps are done, and how many it has."""
        before = 0
        for phase, steps in self.config.phases():
            if self.step < before + steps:
                return phase, self.step - before, steps
            before += steps
        return phase, steps, steps

    def _new_optimizer(self, phase: str) -> torch.optim.Optimizer:
        rate = self.config.learning_rate(phase)
        groups = [
            {"params": self.lora, "peak": rate},
            {"params": self.encoder, "peak": rate * self.config.train.encoder_lr_ratio},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, weight_decay=0.0)

    def _moments(self) -> Tensors:
        """AdamW's state by parameter name; nothing before the first step."""
        if self.optimizer is None:
            return {}
        return {
            f"{name}.{key}": self.optimizer.state[parameter][key]
            for name, parameter in self.trained.items()
            if parameter in self.optimizer.state
            for key in MOMENTS
        }

    def _load_moments(self, tensors: Tensors) -> None:
        for name, parameter in self.trained.items():
            if f"{name}.step" in tensors:
                moments = {key: tensors[f"{name}.{key}"] for key in MOMENTS}
                # AdamW keeps its step on the CPU, whatever the device.
                self.optimizer.state[parameter] = {
                    key: tensor if key == "step" else tensor.to(parameter.device) for key, tensor in moments.items()
                }


def sampling_of(config: RunConfig, codec: Codec, temperature: float | None = None) -> Sampling:
    """The engine's sampling settings; `temperature` overrides the configured one (0: greedy evaluation)."""
    settings = config.sampling
    return Sampling(
        temperature=settings.temperature if temperature is None else temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_new_tokens=settings.max_new_tokens,
        end_ids=codec.ends,
        vocab=len(codec.tokenizer),
    )


def score_traces(examples: Examples, questions: Sequence[Question], traces: Sequence[Trace]) -> Scores:
    """What the completions of `traces` are worth as answers to `questions`."""
    return examples.score(questions, [Completion(trace.completion, trace.finish) for trace in traces])


def linear_schedule(done: int, steps: int, warmup: int) -> float:
    """Learning rate after `done` of `steps`, as a share of its peak: linear warm-up, then linearly towards 0."""
    return min(1.0, (done + 1) / (warmup + 1)) * (1 - done / max(steps, 1))


def rollout_seed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run seed."""
    return seed * 1_000_000 + step
