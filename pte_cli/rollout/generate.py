"""One completion of one prompt, under a bounded cache, its text given out as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pte_cli.config import EvictConfig, SamplingConfig
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import Loaded
from pte_cli.rollout.sampling import Sampling
from pte_cli.tasks.text_stream import TextStream


@dataclass(frozen=True)
class Generated:
    """A completion. tokens: with its end token; text: without. finish: "stop" or "length"."""

    text: str
    tokens: tuple[int, ...]
    finish: str
    evictions: int
    peak_cache_bytes: int


def engine_of(loaded: Loaded, evict: EvictConfig, sampling: SamplingConfig, batch: int) -> RolloutEngine:
    """The engine these settings describe."""
    codec = loaded.codec
    settings = Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        end_ids=codec.ends,
        vocab=len(codec.tokenizer),
    )
    return RolloutEngine(loaded.model, loaded.policy, Budget(evict.budget, evict.frac), settings, batch=batch)


def generate(
    loaded: Loaded,
    evict: EvictConfig,
    sampling: SamplingConfig,
    prompt: Sequence[int],
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Complete `prompt` (token ids). on_text gets the text piece by piece. UsageError where the prompt does not fit."""
    engine = engine_of(loaded, evict, sampling, batch=1)
    text = TextStream(loaded.codec.tokenizer)

    def on_token(_: int, token: int) -> None:
        if token not in loaded.codec.ends:
            tell(text.add(token))

    def tell(piece: str) -> None:
        if piece and on_text is not None:
            on_text(piece)

    [(_, trace)] = engine.stream([prompt], seed, on_token=on_token if on_text is not None else None)
    tell(text.finish())
    return Generated(
        text=loaded.codec.text(trace.completion),
        tokens=trace.completion,
        finish=trace.finish,
        evictions=len(trace.evictions),
        peak_cache_bytes=engine.peak_cache_bytes,
    )
