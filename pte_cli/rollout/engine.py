"""The rollout engine: prompts in, traces out, with a queue in front and a bounded cache inside.

Rows are independent. The host knows every row's length and hence when it must evict; the device is only asked
whether a row has ended, and that every few steps.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pte_cli.api import EvictionPolicy, pinned_length
from pte_cli.budget import eviction_count, window
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import EMPTY, BoundedCache
from pte_cli.rollout.evict import evict
from pte_cli.rollout.sampling import Sampling, choose, uniforms
from pte_cli.rollout.step import Buffers, Step
from pte_cli.rollout.trace import Eviction, Trace


@dataclass(frozen=True)
class Budget:
    """The cache's bound: C tokens per row (None: unbounded) and the share of the window that leaves when full."""

    tokens: int | None = None
    frac: float = 0.25


@dataclass
class Row:
    """What the host knows about a slot of the batch that is at work. Times are decoding steps of the whole run."""

    sequence: int
    prompt: tuple[int, ...]
    pinned: int
    """Tokens from the start that never leave."""
    count: int
    """Tokens that leave at each eviction."""
    started: int
    full_at: int
    """When its cache is full next."""
    tokens: array = field(default_factory=lambda: array("q"))
    """Those the host has heard of, past the end token too where it was heard of late."""
    logprobs: array = field(default_factory=lambda: array("d"))
    ended: int | None = None
    """Length of the completion, its end token included."""
    evictions: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """(thinking tokens fed, count, positions on the device) of each eviction."""
    told: int = 0
    """Tokens that a listener has been told of."""


@dataclass(frozen=True)
class Prefilled:
    """Prompts that the model has read: their cache, and the hidden state `[n, hidden]` after each."""

    prompts: list[tuple[int, ...]]
    cache: BoundedCache
    last: Tensor


NEVER = 2**62

OnToken = Callable[[int, int], None]
"""Told each token as it comes: the index of its prompt, and its id."""


class RolloutEngine:
    """Generates completions for prompts, `batch` rows at a time, under a bounded cache.

    A finished row's slots go to the next prompt in the queue. Each sequence draws from its own stream of random
    numbers, so the tokens depend on the seed and the sequence's index, not on which rows share the batch.
    """

    def __init__(
        self,
        model: BoundedModel,
        policy: EvictionPolicy,
        budget: Budget,
        sampling: Sampling,
        *,
        batch: int = 64,
    ) -> None:
        self.model = model
        self.policy = policy
        self.budget = budget if policy.bounded else Budget(None, budget.frac)
        self.sampling = sampling
        self.batch = batch
        self.peak_cache_bytes = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], seed: int = 0, *, streams: Sequence[int] | None = None
    ) -> list[Trace]:
        """One trace per prompt (token ids), in the order given.

        Raises UsageError before anything is generated when a prompt leaves a window of fewer than 4 tokens.
        """
        traces = dict(self.stream(prompts, seed, streams=streams))
        return [traces[i] for i in range(len(prompts))]

    def check_fits(self, prompt: Sequence[int]) -> None:
        """UsageError when the prompt leaves a window of fewer than 4 tokens."""
        if self.budget.tokens is not None:
            window(self.budget.tokens, len(prompt), pinned_length(self.policy, len(prompt)))

    @torch.no_grad()
    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        seed: int = 0,
        *,
        streams: Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[int, Trace]]:
        """(index of the prompt, trace) of each sequence as it ends; nothing else may use the model before the last.

        streams: which random numbers each prompt draws from; by default its index. on_token: costs a wait for the
        device at every step. UsageError as `generate`.
        """
        for prompt in prompts:
            self.check_fits(prompt)
        queue = deque((i, tuple(prompt)) for i, prompt in enumerate(prompts))
        batch = min(self.batch, len(queue))
        if not batch:
            return
        longest = max(len(prompt) for _, prompt in queue)
        capacity = self.budget.tokens or longest + self.sampling.max_new_tokens
        run = _Run(self, batch, capacity, seed, streams or range(len(prompts)), on_token)
        self.peak_cache_bytes = max(self.peak_cache_bytes, run.cache.nbytes)
        with self.model.session():
            while queue or run.busy:
                idle = run.idle
                if queue and idle:
                    run.start([(slot, *queue.popleft()) for slot in idle[: len(queue)]])
                yield from run.steps()


class _Run:
    """The state of one `generate` call: cache, encoder state, buffers and the host's rows."""

    def __init__(
        self,
        engine: RolloutEngine,
        batch: int,
        capacity: int,
        seed: int,
        streams: Sequence[int],
        on_token: OnToken | None,
    ) -> None:
        self.engine, self.model = engine, engine.model
        self.seed, self.streams, self.on_token = seed, streams, on_token
        self.limit = engine.sampling.max_new_tokens
        self.ends = frozenset(engine.sampling.end_ids)
        device = self.model.device
        self.dtype = torch.promote_types(self.model.dtype, torch.float32)
        self.cache: BoundedCache = self.model.new_cache(engine.policy, batch, capacity)
        self.state = {name: t.clone() for name, t in self.model.init_state(batch).items()}
        self.cores = self.model.cores(self.state)
        self.buffers = Buffers.empty(batch, self.limit, device)
        step = Step(self.model, engine.sampling, self.cache, self.buffers)
        self.decode = step if self.model.compiled is None else self.model.compiled.bind(step)
        self.rows: list[Row | None] = [None] * batch
        self.clock, self.next_full = 0, NEVER
        self.latest: Prefilled | None = None
        self.unheard: list[tuple[Sequence[int], Tensor, Tensor]] = []
        """(slots, tokens, log-probabilities) that the host has not asked for yet."""
        # Asking for tokens waits for the device: for free on a CPU, rarely elsewhere.
        self.sync_every = 1 if device.type == "cpu" or on_token is not None else 16

    @property
    def idle(self) -> list[int]:
        return [slot for slot, row in enumerate(self.rows) if row is None]

    @property
    def busy(self) -> bool:
        return any(row is not None for row in self.rows)

    def index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.model.device)

    def start(self, arrivals: list[tuple[int, int, tuple[int, ...]]]) -> None:
        """Give (slot, sequence, prompt) rows their prompts, read together, and sample their first tokens."""
        budget, buffers = self.engine.budget, self.buffers
        for slot, sequence, prompt in arrivals:
            pinned = pinned_length(self.engine.policy, len(prompt))
            count = eviction_count(budget.tokens, len(prompt), budget.frac, pinned) if budget.tokens else 0
            full_at = self.clock + self.cache.capacity - len(prompt)
            self.rows[slot] = Row(sequence, prompt, pinned, count, self.clock, full_at)
            self.next_full = min(self.next_full, full_at)
        read = self.prefill([prompt for _, _, prompt in arrivals])
        slots = self.index([slot for slot, _, _ in arrivals])
        which = self.index([read.prompts.index(prompt) for _, _, prompt in arrivals])
        self.cache.load_rows(slots, read.cache, which)
        for name, tensor in self.model.init_state(len(arrivals)).items():
            self.state[name][:, slots] = tensor
        self.cores = self.model.cores(self.state)

        buffers.uniform[slots] = torch.stack(
            [uniforms(self.seed, self.streams[sequence], self.limit) for _, sequence, _ in arrivals]
        ).to(slots.device)
        token, logprob = choose(self.model.head(read.last[which]), buffers.uniform[slots, 0], self.engine.sampling)
        self.unheard.append(([slot for slot, _, _ in arrivals], token, logprob))
        buffers.current[slots, 0] = token
        buffers.positions[slots, 0] = self.index([len(prompt) for _, _, prompt in arrivals])
        buffers.column[slots] = 1
        buffers.busy[slots] = 1

    def prefill(self, prompts: list[tuple[int, ...]]) -> Prefilled:
        """Read these prompts together; a single one again and again (a group whose rows start apart) only once."""
        asked = list(dict.fromkeys(prompts))
        if self.latest is not None and asked == self.latest.prompts:
            return self.latest
        longest = max(map(len, asked))
        ids = self.index([[*prompt, *[0] * (longest - len(prompt))] for prompt in asked])
        lengths = self.index([len(prompt) for prompt in asked])
        positions = torch.arange(longest, device=ids.device).expand_as(ids)
        positions = positions.masked_fill(positions >= lengths[:, None], EMPTY)
        cache = self.model.new_cache(self.engine.policy, len(asked), longest)
        cache.begin_write(positions)
        cores = self.model.cores(self.model.init_state(len(asked)))
        hidden = self.model.hidden(ids, positions, cache, cores)
        last = hidden[torch.arange(len(asked), device=ids.device), lengths - 1]
        read = Prefilled(asked, cache, last)
        self.latest = read if len(asked) == 1 else None
        return read

    def steps(self) -> list[tuple[int, Trace]]:
        """Decode until it is time to ask which rows have ended, then collect those."""
        fed = max(self.clock - row.started for row in self.rows if row is not None)
        for _ in range(min(self.sync_every, self.limit - 1 - fed)):
            self.step()
        return self.collect()

    def step(self) -> None:
        """Feed the current token of every row and sample the next."""
        if self.clock >= self.next_full:
            self.make_room()
        token, logprob = self.decode(self.cores)
        self.unheard.append((range(len(self.rows)), token, logprob))
        self.clock += 1

    def make_room(self) -> None:
        """Evict from every row whose cache is full, and let the encoder absorb what leaves."""
        full = [slot for slot, row in enumerate(self.rows) if row is not None and row.full_at == self.clock]
        if full:
            self.evict(full)
        self.next_full = min((row.full_at for row in self.rows if row is not None), default=NEVER)

    def evict(self, full: list[int]) -> None:
        """One eviction from the rows in the slots `full`."""
        rows = [self.rows[slot] for slot in full]
        counts = [row.count for row in rows]
        where = self.index(full)
        evicted = evict(
            self.cache,
            where,
            self.index([len(row.prompt) for row in rows]),
            self.index([row.pinned for row in rows]),
            self.index(counts),
            max(counts),
            policy=self.engine.policy,
        )
        for i, row in enumerate(rows):
            row.evictions.append((self.clock - row.started, row.count, evicted.positions[:, i, :, : row.count]))
            row.full_at += row.count
        if self.state:
            before = {name: tensor[:, where] for name, tensor in self.state.items()}
            evicted = self.model.readable(evicted, before, lambda: (self.cache.select(where), self.sequences(rows)))
            for name, tensor in self.model.absorb(before, evicted).items():
                self.state[name][:, where] = tensor
            self.cores = self.model.cores(self.state)

    def sequences(self, rows: list[Row]) -> Tensor:
        """Token ids of `rows` so far, the next to be fed included, `[b, T]` padded with 0."""
        self.hear()
        tokens = [[*row.prompt, *row.tokens] for row in rows]
        longest = max(map(len, tokens))
        return self.index([[*row, *[0] * (longest - len(row))] for row in tokens])

    def hear(self) -> None:
        """Ask the device for what was sampled since the last time."""
        for slots, tokens, logprobs in self.unheard:
            for slot, token, logprob in zip(slots, tokens.tolist(), logprobs.tolist(), strict=True):
                row = self.rows[slot]
                if row is not None:
                    row.tokens.append(token)
                    row.logprobs.append(logprob)
                    if row.ended is None and token in self.ends:
                        row.ended = len(row.tokens)
        self.unheard.clear()

    def collect(self) -> list[tuple[int, Trace]]:
        """Turn rows that ended, or reached the length limit, into traces, and free their slots."""
        self.hear()
        finished, traces = [], []
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            length = row.ended or len(row.tokens)
            if self.on_token is not None:
                for token in row.tokens[row.told : length]:
                    self.on_token(row.sequence, token)
                row.told = length
            if row.ended or length >= self.limit:
                finished.append(slot)
                traces.append((row.sequence, self.trace(row, length)))
                self.rows[slot] = None
        if finished:
            slots = self.index(finished)
            self.cache.clear(slots)
            self.buffers.rest(slots)
        return traces

    def trace(self, row: Row, length: int) -> Trace:
        """The finished row as a trace. Evictions after its last fed token were for nothing and are left out."""
        kept = [e for e in row.evictions if e[0] < length - 1]
        return Trace(
            prompt=row.prompt,
            completion=tuple(row.tokens[:length]),
            finish="stop" if row.ended else "length",
            budget=self.engine.budget.tokens,
            evictions=tuple(Eviction(step, count, gone.to("cpu", torch.int32)) for step, count, gone in kept),
            logprobs=torch.tensor(row.logprobs[:length], dtype=self.dtype),
        )
