"""Evaluation on benchmarks: k completions of every problem, graded, recorded as they come, and scored."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pte_cli.config import RunConfig, SamplingConfig
from pte_cli.errors import UsageError
from pte_cli.eval.benchmarks import BenchProblem
from pte_cli.eval.scores import Recorded, bench_score
from pte_cli.eval.store import Format, Outcome, SampleStore, outcome_of
from pte_cli.interrupts import interrupts_later
from pte_cli.runs import RunDir
from pte_cli.tasks.grading import Grader, Item, grader_version
from pte_cli.tasks.prompts import THINK, Rendered, render

CHUNK = 64
"""Samples graded and written together: at most so many are lost when the program is killed."""

OnDone = Callable[[int, int, float], None]
"""Told how many samples are done, of how many, and the share that is right."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated.

    ks: which pass@k; each at most `samples`. seed: of sampling. style, system: how problems are asked.
    """

    benchmarks: Mapping[str, Sequence[BenchProblem]]
    samples: int
    ks: tuple[int, ...]
    sampling: SamplingConfig
    seed: int
    style: str
    system: str | None = None


@dataclass(frozen=True)
class Job:
    """One sample that is still to be made."""

    benchmark: str
    problem: BenchProblem
    sample: int

    @property
    def stream(self) -> int:
        """Which random numbers it draws: its own, whatever else is evaluated with it or before it."""
        name = f"{self.benchmark}/{self.problem.id}/{self.sample}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:5], "big")


class Evaluation:
    """One evaluation, in three steps: what can be refused, generating what is missing, scores."""

    def __init__(
        self, config: RunConfig, run: RunDir | None, plan: Plan, out: Path | None = None, compare: Path | None = None
    ) -> None:
        """Reads what is recorded in `out` and in `compare`; UsageError where one does not fit. Loads no model."""
        self.config, self.run, self.plan = config, run, plan
        self.header = header(config, run, plan)
        self.store = SampleStore(out, self.header) if out is not None else None
        self.other = Recorded.read(compare, plan.benchmarks, self.header) if compare is not None else None
        self.outcomes: dict[str, list[Outcome]] = {name: [] for name in plan.benchmarks}
        if self.store is not None:
            for name, problems in plan.benchmarks.items():
                texts = {problem.id: (problem.problem, problem.answer) for problem in problems}
                found = self.store.outcomes(name, texts)
                self.outcomes[name] = [outcome for outcome in found if outcome.sample < plan.samples]
        self.recorded = self.done
        self.seconds = 0.0
        self.tokens = 0
        self.cache_bytes: int | None = None

    @property
    def done(self) -> int:
        return sum(len(outcomes) for outcomes in self.outcomes.values())

    @property
    def total(self) -> int:
        return self.plan.samples * sum(len(problems) for problems in self.plan.benchmarks.values())

    def missing(self) -> list[Job]:
        """The samples that are not recorded yet."""
        there = {(name, outcome.id, outcome.sample) for name, found in self.outcomes.items() for outcome in found}
        jobs = [
            Job(name, problem, sample)
            for name, problems in self.plan.benchmarks.items()
            for problem in problems
            for sample in range(self.plan.samples)
        ]
        return [job for job in jobs if (job.benchmark, job.problem.id, job.sample) not in there]

    def generate(self, on_done: OnDone) -> None:
        """Make and record the missing samples. UsageError, before the first, for a prompt that does not fit."""
        jobs = self.missing()
        if not jobs:
            return
        from pte_cli.rollout.generate import engine_of
        from pte_cli.rollout.prepare import load

        loaded = load(self.config, adapter=self.run.adapter if self.run else None)
        prompts = rendered_prompts(jobs, loaded.codec, self.plan)
        engine = engine_of(loaded, self.config.evict, self.plan.sampling, self.config.sampling.rows)
        for job, prompt in zip(jobs, prompts, strict=True):
            try:
                engine.check_fits(prompt.ids)
            except UsageError as error:
                raise UsageError(f"problem {job.problem.id!r} of {job.benchmark}: {error}") from None
        traces = engine.stream([prompt.ids for prompt in prompts], self.plan.seed, streams=[job.stream for job in jobs])
        waiting: list[tuple[Job, dict[str, Any]]] = []
        with Grader() as grader:
            try:
                for i, trace in self.timed(traces):
                    self.tokens += len(trace.completion)
                    # Reasoning that the prompt opened is graded, and can be graded again, as what it is.
                    opened = f"{THINK}\n" if prompts[i].thinks else ""
                    made = {
                        "prompt": prompts[i].text,
                        "completion": opened + loaded.codec.text(trace.completion),
                        "finish": trace.finish,
                        "length": len(trace.completion),
                        "evictions": len(trace.evictions),
                    }
                    waiting.append((jobs[i], made))
                    if len(waiting) == CHUNK:
                        self.keep(grader, waiting, on_done)
            finally:
                self.cache_bytes = engine.peak_cache_bytes
                self.keep(grader, waiting, on_done)

    def timed(self, traces: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The same, adding up how long each was waited for."""
        while True:
            start = time.perf_counter()
            item = next(traces, None)
            self.seconds += time.perf_counter() - start
            if item is None:
                return
            yield item

    def keep(self, grader: Grader, waiting: list[tuple[Job, dict[str, Any]]], on_done: OnDone) -> None:
        """Grade and record what is waiting, and empty it."""
        if not waiting:
            return
        items = [Item(job.problem.answer, made["completion"], job.problem.problem) for job, made in waiting]
        records: dict[str, list[dict[str, Any]]] = {}
        for (job, made), grade in zip(waiting, grader.grade(items), strict=True):
            record = {
                "id": job.problem.id,
                "sample": job.sample,
                "problem": job.problem.problem,
                "answer": job.problem.answer,
                **made,
                "extracted": grade.answer,
                "score": grade.score,
                "reason": grade.reason,
                "correct": grade.right,
                "grader": grader_version(),
            }
            records.setdefault(job.benchmark, []).append(record)
        # Ctrl-C in between would have what is recorded recorded again.
        with interrupts_later():
            for name, found in records.items():
                if self.store is not None:
                    self.store.append(name, found)
                self.outcomes[name] += [outcome_of(record) for record in found]
            waiting.clear()
        right = sum(outcome.score for outcomes in self.outcomes.values() for outcome in outcomes)
        on_done(self.done, self.total, right / self.done)

    def result(self) -> dict[str, Any]:
        """Scores and the settings they belong to, for `--json` and for people."""
        scores = {name: bench_score(outcomes, self.plan.ks) for name, outcomes in self.outcomes.items()}
        mean = sum(score.average.mean for score in scores.values()) / len(scores)
        return {
            **self.header,
            "run": str(self.run.path) if self.run else None,
            "samples": self.plan.samples,
            "benchmarks": {name: asdict(score) for name, score in scores.items()},
            "mean": mean,
            "recorded_before": self.recorded,
            "tokens_per_second": self.tokens / self.seconds if self.tokens else None,
            "peak_cache_bytes": self.cache_bytes,
            "compare": self.other.against(self.outcomes) if self.other is not None else None,
        }

    def finish(self, form: Format) -> dict[str, Any]:
        """The result, also written to where the samples are."""
        result = self.result()
        if self.store is not None:
            self.store.finish(result, list(self.outcomes), form)
        return result


def header(config: RunConfig, run: RunDir | None, plan: Plan) -> dict[str, Any]:
    """The settings that decide what a sample is. Which problems, and how many samples of each, may change later."""
    sampling = plan.sampling
    greedy = sampling.temperature == 0
    return {
        "model": config.model.model_dump(mode="json", exclude={"device"}),
        "adapter": digest(run.adapter / "adapter_model.safetensors") if run else None,
        "encoder": config.encoder.name if run else "none",
        "evict": config.evict.model_dump(mode="json"),
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": None if greedy else plan.seed,
        "prompt_style": plan.style,
        "system_prompt": plan.system,
        "grader": grader_version(),
    }


def digest(file: Path) -> str:
    """16 hexadecimal digits of a file's SHA-256."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def rendered_prompts(jobs: Sequence[Job], codec: Any, plan: Plan) -> list[Rendered]:
    """The prompt of each job. UsageError for a problem that the model's tokenizer can't write."""
    by_problem: dict[str, Rendered] = {}
    for job in jobs:
        text = job.problem.problem
        if text in by_problem:
            continue
        if codec.unknown_word([text]) is not None:
            word = codec.unknown_word(text.split())
            raise UsageError(
                f"problem {job.problem.id!r} of {job.benchmark}: the model's tokenizer has no token for {word!r}"
            )
        by_problem[text] = render(codec.tokenizer, text, plan.style, plan.system)
    return [by_problem[job.problem.problem] for job in jobs]
