"""Tables of sampled completions: a Parquet file for every step that is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from torch import Tensor

from pte_cli.rollout.trace import Trace
from pte_cli.tasks.codec import Codec
from pte_cli.tasks.examples import Question, Scores
from pte_cli.tasks.grading.extract import last_box, outside_thinking


def write_completions(
    file: Path,
    step: int,
    codec: Codec,
    questions: Sequence[Question],
    traces: Sequence[Trace],
    scores: Scores,
    advantages: Tensor,
) -> None:
    """Prompt, completion, every reward, advantage and the answer read from the completion, a row for each trace."""
    texts = [codec.text(trace.completion) for trace in traces]
    columns = {
        "step": [step] * len(traces),
        "prompt": [codec.text(question.prompt) for question in questions],
        "completion": texts,
        "tokens": [len(trace.completion) for trace in traces],
        "finish": [trace.finish for trace in traces],
        "evictions": [len(trace.evictions) for trace in traces],
        "answer": [boxed(text) for text in texts],
        "right": list(scores.right),
        "reward": [None if value != value else float(value) for value in scores.rewards],
        "advantage": advantages.tolist(),
    }
    columns |= {f"rewards/{name}": list(values) for name, values in scores.by_name.items()}
    file.parent.mkdir(exist_ok=True)
    scratch = file.with_name(f".{file.name}.tmp")
    pyarrow.parquet.write_table(pyarrow.table(columns), scratch)
    scratch.replace(file)


def boxed(text: str) -> str | None:
    """The final boxed answer outside the reasoning; None where there is none."""
    outside = outside_thinking(text)
    return None if outside is None else last_box(outside)
