"""The rollout engine: prompts in, traces out, with a queue in front and a bounded cache inside.

Rows are independent. The host knows every row's length and hence when it must evict; the device is only asked
whether a row has ended, and that every few steps.
"""

from __future__ import annotations

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
from pte_cli.rollout.sampling import Sampling, log_probs, sample, uniforms
from pte_cli.rollout.trace import Eviction, Trace


@dataclass(frozen=True)
class Budget:
    """The cache's bound: C tokens per row (None: unbounded) and the share of the window that leaves when full."""

    tokens: int | None = None
    frac: float = 0.25


@dataclass
class Row:
    """What the host knows about a slot of the batch that is at work."""

    sequence: int
    prompt: tuple[int, ...]
    pinned: int = 0
    """Tokens from the start that never leave."""
    count: int = 0
    """Tokens that leave at each eviction."""
    cached: int = 0
    fed: int = 0
    """Thinking tokens fed so far; the completion has one more."""
    evictions: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """(step, count, positions on the device) of each eviction."""
    told: int = 0
    """Tokens that a listener has been told of."""


@dataclass
class Buffers:
    """The batch on the device: what was sampled, and what the next step needs. All `[B]` or `[B, T]`."""

    tokens: Tensor
    logprobs: Tensor
    uniform: Tensor
    current: Tensor
    positions: Tensor
    ended: Tensor
    """Length of the completion at its first end token; a large number before that."""

    @classmethod
    def empty(cls, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> Buffers:
        def whole(fill: int, *size: int) -> Tensor:
            return torch.full(size, fill, dtype=torch.int64, device=device)

        return cls(
            tokens=whole(0, batch, length),
            logprobs=torch.zeros(batch, length, dtype=dtype, device=device),
            uniform=torch.zeros(batch, length, device=device),
            current=whole(0, batch, 1),
            positions=whole(EMPTY, batch, 1),
            ended=whole(NEVER, batch),
        )


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
        device = self.model.device
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        self.cache: BoundedCache = self.model.new_cache(engine.policy, batch, capacity)
        self.state = {name: t.clone() for name, t in self.model.init_state(batch).items()}
        self.cores = self.model.cores(self.state)
        self.buffers = Buffers.empty(batch, self.limit, device, dtype)
        self.ends = torch.tensor(engine.sampling.end_ids, dtype=torch.int64, device=device)
        self.rows: list[Row | None] = [None] * batch
        # Asking whether a row has ended waits for the device: for free on a CPU, rarely elsewhere.
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
        """Prefill (slot, sequence, prompt) rows together and sample their first tokens."""
        budget, buffers = self.engine.budget, self.buffers
        for slot, sequence, prompt in arrivals:
            pinned = pinned_length(self.engine.policy, len(prompt))
            count = eviction_count(budget.tokens, len(prompt), budget.frac, pinned) if budget.tokens else 0
            self.rows[slot] = Row(sequence, prompt, pinned, count, cached=len(prompt))
        longest = max(len(prompt) for _, _, prompt in arrivals)
        ids = self.index([[*p, *[0] * (longest - len(p))] for _, _, p in arrivals])
        lengths = self.index([len(p) for _, _, p in arrivals])
        positions = torch.arange(longest, device=ids.device).expand_as(ids)
        positions = positions.masked_fill(positions >= lengths[:, None], EMPTY)
        slots = self.index([slot for slot, _, _ in arrivals])

        fresh = self.model.new_cache(self.engine.policy, len(arrivals), longest)
        fresh.begin_write(positions)
        state = self.model.init_state(len(arrivals))
        hidden = self.model.hidden(ids, positions, fresh, self.model.cores(state))
        self.cache.load_rows(slots, fresh)
        for name, tensor in state.items():
            self.state[name][:, slots] = tensor
        self.cores = self.model.cores(self.state)

        buffers.uniform[slots] = torch.stack(
            [uniforms(self.seed, self.streams[sequence], self.limit) for _, sequence, _ in arrivals]
        ).to(ids.device)
        buffers.ended[slots] = NEVER
        last = hidden[torch.arange(len(arrivals), device=ids.device), lengths - 1]
        token, logprob, ended = self.choose(last, buffers.uniform[slots, 0])
        buffers.tokens[slots, 0] = token
        buffers.logprobs[slots, 0] = logprob
        buffers.ended[slots] = torch.where(ended, 1, buffers.ended[slots])
        buffers.current[slots, 0] = token
        buffers.positions[slots, 0] = lengths

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next tokens, their log-probabilities and whether they end the completion, each `[b]`."""
        sampling = self.engine.sampling
        logprobs = log_probs(self.model.head(hidden), sampling.temperature, sampling.vocab)
        token = sample(logprobs, uniform, sampling)
        chosen = logprobs.gather(-1, token[:, None]).squeeze(-1)
        return token, chosen, torch.isin(token, self.ends)

    def steps(self) -> list[tuple[int, Trace]]:
        """Decode until it is time to ask which rows have ended, then collect those."""
        active = [row for row in self.rows if row is not None]
        room = min(self.limit - 1 - row.fed for row in active)
        # `fed` of each row as a tensor, so that a step is told on the device where to write.
        fed = self.index([row.fed if row else 0 for row in self.rows])[:, None]
        for done in range(min(self.sync_every, room)):
            self.step(fed + done + 1)
        return self.collect()

    def step(self, column: Tensor) -> None:
        """Feed the current token of every row and sample the next into `column` `[B, 1]`."""
        self.make_room()
        buffers = self.buffers
        self.cache.begin_write(buffers.positions)
        hidden = self.model.hidden(buffers.current, buffers.positions, self.cache, self.cores)
        token, logprob, ended = self.choose(hidden[:, 0], buffers.uniform.gather(1, column)[:, 0])
        buffers.tokens.scatter_(1, column, token[:, None])
        buffers.logprobs.scatter_(1, column, logprob[:, None])
        length = column[:, 0] + 1
        buffers.ended.copy_(torch.where(ended, torch.minimum(buffers.ended, length), buffers.ended))
        buffers.current.copy_(token[:, None])
        buffers.positions.add_(buffers.positions >= 0)
        for row in self.rows:
            if row is not None:
                row.fed += 1
                row.cached += 1

    def make_room(self) -> None:
        """Evict from every row whose cache is full, and let the encoder absorb what leaves."""
        full = [slot for slot, row in enumerate(self.rows) if row is not None and row.cached == self.cache.capacity]
        if not full:
            return
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
            row.evictions.append((row.fed, row.count, evicted.positions[:, i, :, : row.count]))
            row.cached -= row.count
        if self.state:
            before = {name: tensor[:, where] for name, tensor in self.state.items()}
            evicted = self.model.readable(evicted, before, lambda: (self.cache.select(where), self.sequences(full)))
            for name, tensor in self.model.absorb(before, evicted).items():
                self.state[name][:, where] = tensor
            self.cores = self.model.cores(self.state)

    def sequences(self, slots: list[int]) -> Tensor:
        """Token ids of the rows in `slots` so far, the next to be fed included, `[b, T]` padded with 0."""
        rows = [self.rows[slot] for slot in slots]
        return torch.nn.utils.rnn.pad_sequence(
            [
                torch.cat((self.index(row.prompt), self.buffers.tokens[slot, : row.fed + 1]))
                for slot, row in zip(slots, rows, strict=True)
            ],
            batch_first=True,
        )

    def collect(self) -> list[tuple[int, Trace]]:
        """Turn rows that ended, or reached the length limit, into traces, and free their slots."""
        ended = self.buffers.ended.tolist()
        finished, traces = [], []
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            length = min(ended[slot], row.fed + 1)
            if self.on_token is not None:
                for token in self.buffers.tokens[slot, row.told : length].tolist():
                    self.on_token(row.sequence, token)
                row.told = length
            if ended[slot] == length or length >= self.limit:
                finished.append(slot)
                traces.append((row.sequence, self.trace(slot, row, length, ended[slot] == length)))
                self.rows[slot] = None
        if finished:
            slots = self.index(finished)
            self.cache.clear(slots)
            self.buffers.positions[slots] = EMPTY
        return traces

    def trace(self, slot: int, row: Row, length: int, stopped: bool) -> Trace:
        """The finished row as a trace. Evictions after its last fed token were for nothing and are left out."""
        kept = [e for e in row.evictions if e[0] < length - 1]
        return Trace(
            prompt=row.prompt,
            completion=tuple(self.buffers.tokens[slot, :length].tolist()),
            finish="stop" if stopped else "length",
            budget=self.engine.budget.tokens,
            evictions=tuple(Eviction(step, count, gone.to("cpu", torch.int32)) for step, count, gone in kept),
            logprobs=self.buffers.logprobs[slot, :length].cpu().clone(),
        )
