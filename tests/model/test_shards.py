"""Layers that are shared out: the same numbers from one layer's memory, and no process that waits for ever."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import torch.distributed as dist
from helpers import adapted, policy, prompts
from transformers import PretrainedConfig

from pte_cli.config import ModelConfig
from pte_cli.errors import PteError, UsageError
from pte_cli.model import shards as module
from pte_cli.model.load import check_shardable
from pte_cli.model.shards import RESTING, Shards
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay


@pytest.fixture
def group():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def whole_bytes(shards):
    """Bytes of each layer that are there beside this process's parts."""
    return [layer.whole.untyped_storage().nbytes() for layer in shards.layers]


def step(model, gradient):
    """Tokens of a rollout, and the gradients of its replay."""
    sampling = Sampling(max_new_tokens=24, end_ids=(1, 3))
    traces = RolloutEngine(model, policy("sliding"), Budget(20, 0.25), sampling, batch=2).generate(
        prompts([5, 9, 3]), seed=4
    )
    assert max(len(trace.evictions) for trace in traces) >= 2
    replay(
        model,
        traces,
        policy("sliding"),
        loss=lambda scored: (scored.logprobs * (scored.tokens + 1)).sum() / 100,
        gradient=gradient,
    )
    found = {name: p.grad.clone() for name, p in model.model.named_parameters() if p.requires_grad}
    model.model.zero_grad()
    return [trace.completion for trace in traces], found


@pytest.mark.parametrize(
    ("family", "encoder", "gradient", "checkpointed"),
    [
        ("qwen2", "pte", "truncated", False),
        ("qwen3", "pte", "exact", True),
        ("gemma3", "pte", "exact", False),
        ("smollm3", "none", "truncated", True),
        ("llama", "ttt", "truncated", False),  # its state is a gradient through the model: passes within passes
    ],
)
def test_the_same_numbers_from_the_memory_of_one_layer(group, monkeypatch, family, encoder, gradient, checkpointed):
    options = {"objective": "nll"} if encoder == "ttt" else {}
    model = adapted(encoder, family=family, dtype=torch.float64, options=options)
    model.gradient_checkpointing = checkpointed
    tokens, expected = step(model, gradient)

    model.shards = shards = Shards(0, 1)
    shards.take(model.backbone.layers, model.device)
    peaks = []
    allocate = module.Shard.allocate
    monkeypatch.setattr(
        module.Shard, "allocate", lambda shard: (allocate(shard), peaks.append(sum(whole_bytes(shards))))[0]
    )
    again, found = step(model, gradient)
    assert again == tokens
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert max(peaks) == max(layer.whole.nbytes for layer in shards.layers)
    shards.rest()
    assert whole_bytes(shards) == [0] * model.layers


def test_the_reference_is_shared_out_too(group):
    model = adapted("none", dtype=torch.float64)
    trace = RolloutEngine(model, policy("full"), Budget(), Sampling(max_new_tokens=9)).generate(prompts([5]), seed=1)
    with torch.no_grad(), model.adapter_off() as plain:
        expected = replay(plain, trace, policy("full"))
    model.shards = Shards(0, 1)
    model.shards.take(model.backbone.layers, model.device)
    with torch.no_grad(), model.adapter_off() as plain:
        assert torch.equal(replay(plain, trace, policy("full")), expected)


def test_layers_with_hooks_are_refused(group):
    """They go through their own modules, which know nothing of shards."""
    model = adapted("none")
    model.shards = Shards(0, 1)
    model.shards.take(model.backbone.layers, model.device)
    model.backbone.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(PteError, match="FSDP: the model's layers have hooks"), model.session():
        pass


def test_a_quantised_base_is_refused():
    """What `from_pretrained` would be given for it says so, whoever quantised it."""
    with pytest.raises(UsageError, match="model.quantization = '4bit'.*FSDP can't share out quantised weights"):
        check_shardable(ModelConfig(name="there", quantization="4bit"), PretrainedConfig(), {"device_map": {"": "cpu"}})


class Together:
    """`all_gather` of threads, each of which is a process."""

    def __init__(self, count):
        self.barrier, self.own, self.sent = threading.Barrier(count, timeout=20), threading.local(), [0] * count

    def __call__(self, out, mine, group=None):
        self.sent[self.own.rank] = mine.item()
        self.barrier.wait()
        out.copy_(torch.tensor(self.sent))
        self.barrier.wait()


class Recorded:
    """A layer that only notes when it is gathered."""

    def __init__(self, log, index):
        self.log, self.index = log, index

    def gather(self):
        self.log.append(self.index)

    def free(self):
        self.log.append(RESTING)


@pytest.mark.parametrize("seed", range(10))
def test_no_process_waits_for_ever(monkeypatch, seed):
    """Three processes with passes of their own, one of them without any, rest together between them."""
    count, layers, rng = 3, 4, random.Random(seed)
    together = Together(count)
    monkeypatch.setattr(module, "all_gather", together)
    monkeypatch.setattr(module.dist, "new_group", lambda backend: None)
    passes = [*range(layers), *reversed(range(layers))]
    work = [[passes * rng.randrange(4) for _ in range(count - 1)] + [[]] for _ in range(3)]
    logs, served = [[] for _ in range(count)], [[] for _ in range(count)]

    def process(rank):
        together.own.rank = rank
        shards = Shards(rank, count)
        shards.layers = [Recorded(logs[rank], index) for index in range(layers)]
        for phase in work:
            for index in phase[rank]:
                shards.gather(index)
                served[rank].append(shards.gathered)
            shards.rest()
            assert shards.gathered is None
            together.barrier.wait()

    threads = [threading.Thread(target=process, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert served == [[index for phase in work for index in phase[rank]] for rank in range(count)]
    # All took part in the same gatherings, each of which freed the layer before.
    assert logs[0] == logs[1] == logs[2]
    assert all(a == RESTING or b == RESTING for a, b in zip(logs[0], logs[0][1:], strict=False))
