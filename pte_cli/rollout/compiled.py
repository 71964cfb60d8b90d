"""Decoding steps as machine code (`sampling.compile`): a step is recorded once as a flat list of tensor operations.

Everything a step reads is an input of the recorded graph: weights, cores, cache and buffers. Weights that have learned
since are read as they are; other sizes, strides or scales get a graph of their own. TorchInductor compiles the graph
(`torch._inductor.standalone_compile`) without TorchDynamo, whose guards would be checked at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial, singledispatch
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from pte_cli.errors import UsageError, first_lines
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache
from pte_cli.rollout.decoder import FAMILIES, Decoder
from pte_cli.rollout.step import Buffers, Step

Run = Callable[..., tuple[Tensor, Tensor]]
OFF = "leave sampling.compile off"


@dataclass(frozen=True)
class Recorded:
    """A compiled step. weights: which of the model's tensors come first among its inputs."""

    run: Run
    weights: tuple[int, ...]


class CompiledSteps:
    """The compiled steps of a model, one for each set of sizes; keep it as long as the model."""

    def __init__(self) -> None:
        self.recorded: dict[Hashable, Recorded] = {}

    def bind(self, step: Step) -> BoundStep:
        return BoundStep(self, step)

    def get(self, step: Step, weights: Weights, state: State) -> Recorded:
        """The compiled `step` for tensors like these. UsageError where it can't be compiled."""
        key = (step.sampling, step.cache.shape, weights.signature, state.present, *map(_signature, state.tensors()))
        if key not in self.recorded:
            self.recorded[key] = record(step, weights.leaves, state)
        return self.recorded[key]


class Weights:
    """What a model's decoder and head consist of during one session: tensors and plain values."""

    def __init__(self, model: BoundedModel) -> None:
        if model.decoder is None:
            raise unknown_layers(model.backbone)
        self.decoder = model.decoder
        self.leaves = [*leaves(model.decoder), *leaves(model.head)]
        self.signature = tuple(map(_signature, self.leaves))


class BoundStep:
    """A `Step` that runs compiled, for as long as its cache and buffers are."""

    def __init__(self, compiled: CompiledSteps, step: Step) -> None:
        self.compiled, self.step = compiled, step
        self._weights: Weights | None = None
        self._cores: Sequence[Tensor | None] | None = None
        self._run: Run | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, cores: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """As `Step`. `cores` must not be changed once they were used."""
        if cores is not self._cores:
            self._bind(cores)
        return self._run(*self._inputs)

    def _bind(self, cores: Sequence[Tensor | None]) -> None:
        """Look the graph and its inputs up; needed after evictions only."""
        step = self.step
        if self._weights is None or self._weights.decoder is not step.model.decoder:
            self._weights = Weights(step.model)
        state = State.of(step, cores)
        found = self.compiled.get(step, self._weights, state)
        self._cores, self._run = cores, found.run
        self._inputs = [*(self._weights.leaves[i] for i in found.weights), *state.tensors()]


@dataclass(frozen=True)
class State:
    """What a step reads and changes besides weights, layer by layer so that each is written in place."""

    cores: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    positions: Tensor
    observed: list[Tensor]
    buffers: list[Tensor]
    present: tuple[bool, ...]
    """Which layers have a core."""

    @classmethod
    def of(cls, step: Step, cores: Sequence[Tensor | None]) -> State:
        cache, observed = step.cache, step.cache.observed
        records = () if observed is None else (observed.mass, observed.recent)
        return cls(
            [core.contiguous() for core in cores if core is not None],
            list(cache.keys.unbind(0)),
            list(cache.values.unbind(0)),
            cache.positions,
            [record for record in records if record is not None],
            list(vars(step.buffers).values()),
            tuple(core is not None for core in cores),
        )

    def tensors(self) -> list[Tensor]:
        return [*self.cores, *self.keys, *self.values, self.positions, *self.observed, *self.buffers]

    def filled(self, tensors: Sequence[Tensor]) -> State:
        """The same with other tensors in the order of `tensors`."""
        rest = iter(tensors)
        parts = (self.cores, self.keys, self.values, [self.positions], self.observed, self.buffers)
        cores, keys, values, [positions], observed, buffers = (list(islice(rest, len(part))) for part in parts)
        return State(cores, keys, values, positions, observed, buffers, self.present)


class LayeredCache(BoundedCache):
    """A cache while a step is recorded: each layer's keys and values a tensor of its own, `[B, Hkv, C, D]`."""

    def __init__(self, cache: BoundedCache, state: State) -> None:
        vars(self).update(vars(cache))
        self.positions = state.positions
        self._written = list(zip(state.keys, state.values, strict=True))
        if cache.observed is not None:
            self.observed, records = copy(cache.observed), iter(state.observed)
            self.observed.mass = next(records) if cache.observed.mass is not None else None
            self.observed.recent = next(records) if cache.observed.recent is not None else None

    def begin_write(self, position_ids: Tensor) -> None:
        """As `BoundedCache`'s for one token a row `[B, 1]`; keys and values are written by index."""
        slots = self.positions.argmin(-1, keepdim=True)
        self.positions.scatter_(-1, slots, position_ids[None, :, None, :].expand_as(slots))
        device = position_ids.device
        rows = torch.arange(slots.shape[1], device=device)[:, None]
        heads = torch.arange(self.shape.kv_heads, device=device)[None, :]
        each = [(rows, heads, table[..., 0]) for table in slots.unbind(0)]
        self._index = each if self.shape.per_layer else each * self.shape.layers
        self._appended = None
        if self.observed:
            self.observed.forget(slots)
            self.observed.begin(position_ids, append=False)
        self._see(position_ids, self.positions)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        keys, values = self._written[layer_idx]
        index = self._index[layer_idx]
        return keys.index_put_(index, key_states[:, :, 0]), values.index_put_(index, value_states[:, :, 0])


def record(step: Step, weights: list[Any], state: State) -> Recorded:
    """Record `step` for tensors like these, and compile it. UsageError where either can't be done."""

    def flat(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = state.filled(tensors)
        one = Step(step.model, step.sampling, LayeredCache(step.cache, given), Buffers(*given.buffers))
        cores = iter(given.cores)
        return one([next(cores) if present else None for present in state.present])

    inputs = state.tensors()
    try:
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        used = _weights_as_inputs(graph, weights)
        return Recorded(build(graph, [*(weights[i] for i in used), *inputs]), used)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"sampling.compile: torch can't compile the decoding step here ({first_lines(error, 1)}); {OFF}"
        ) from error


def build(graph: GraphModule, inputs: list[Tensor]) -> Run:
    """`graph` as machine code."""
    from torch._inductor import standalone_compile

    # On a CPU the calls between the kernels cost as much as the kernels: they are compiled as well.
    own = inputs[0].device.type == "cpu"
    patches = {"cpp_wrapper": own, "size_asserts": False}
    return standalone_compile(graph, inputs, options={"config_patches": patches})


def check_compilable(model: BoundedModel) -> None:
    """UsageError where the decoding steps of `model` can't be compiled, as far as it is known before one is made."""
    if Decoder.of(model.backbone, model.rotations) is None:
        raise unknown_layers(model.backbone)


def unknown_layers(backbone: nn.Module) -> UsageError:
    return UsageError(
        f"sampling.compile: the layers of {type(backbone).__name__} are not known as plain tensor operations; {OFF}, "
        f"or use a model of {', '.join(FAMILIES)}"
    )


def _weights_as_inputs(graph: GraphModule, weights: list[Any]) -> tuple[int, ...]:
    """Turn the constants that `graph` recorded into inputs before the others; which of `weights` they are, in order."""
    index = {id(weight): i for i, weight in enumerate(weights) if isinstance(weight, Tensor)}
    first = next(iter(graph.graph.nodes))
    fake = first.meta["val"].fake_mode
    inputs: dict[int, torch.fx.Node] = {}
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        i = index.get(id(getattr(graph, node.target)))
        if i is None:
            raise UsageError(f"sampling.compile: a decoding step of this model uses more than its weights; {OFF}")
        if i not in inputs:
            with graph.graph.inserting_before(first):
                inputs[i] = graph.graph.placeholder(f"weight_{i}")
            inputs[i].meta["val"] = fake.from_tensor(weights[i])
        node.replace_all_uses_with(inputs[i])
        graph.graph.erase_node(node)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    return tuple(inputs)


@singledispatch
def leaves(part: object) -> Iterator[Any]:
    """Every tensor and every plain value below a part of the decoder, in an order its structure alone decides."""
    inside = [value for name, value in getattr(part, "__dict__", {}).items() if not name.startswith("_")]
    yield from _each(inside) if inside else [part]


@leaves.register
def _(part: Tensor) -> Iterator[Any]:
    yield part


@leaves.register
def _(part: nn.Module) -> Iterator[Any]:
    yield type(part)
    yield from part.parameters()
    yield from part.buffers()


@leaves.register
def _(part: partial) -> Iterator[Any]:
    yield part.func
    yield from _each(part.keywords.values())


@leaves.register(list)
@leaves.register(tuple)
def _each(parts: Iterable[object]) -> Iterator[Any]:
    for part in parts:
        yield from leaves(part)


@leaves.register
def _(parts: dict) -> Iterator[Any]:
    yield from parts
    yield from _each(parts.values())


def _signature(leaf: Any) -> Hashable:
    """What the recorded graph takes for granted about `leaf`."""
    return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
