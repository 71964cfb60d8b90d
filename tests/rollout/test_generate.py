"""One prompt: text as it comes, equal to what the engine gives."""

from __future__ import annotations

import pytest
from chain_model import chain_model

from pte_cli.config import validate
from pte_cli.rollout.generate import engine_of, generate
from pte_cli.rollout.prepare import load


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    folder = chain_model(tmp_path_factory.mktemp("models") / "chain")
    config = validate({"model": {"name": str(folder)}, "evict": {"budget": 16}, "sampling": {"max_new_tokens": 30}})
    return load(config), config


def greedy(config, **more):
    return config.sampling.model_copy(update={"temperature": 0.0, **more})


def test_text_comes_in_pieces_and_ends_before_the_end_token(chain):
    loaded, config = chain
    pieces = []
    made = generate(
        loaded, config.evict, greedy(config), loaded.codec.tokenizer("Sum?")["input_ids"], on_text=pieces.append
    )
    assert pieces == list("\\boxed{7}")
    assert made.text == "\\boxed{7}"
    assert (len(made.tokens), made.finish, made.evictions) == (10, "stop", 0)
    assert made.tokens[-1] == loaded.codec.tokenizer.eos_token_id


def test_streamed_or_not_it_is_what_the_engine_gives(chain):
    loaded, config = chain
    prompt = loaded.codec.tokenizer("yes!")["input_ids"]
    made = generate(loaded, config.evict, greedy(config), prompt, on_text=lambda _: None)
    [trace] = engine_of(loaded, config.evict, greedy(config), batch=1).generate([prompt])
    assert made == generate(loaded, config.evict, greedy(config), prompt)
    assert (made.tokens, made.finish, made.evictions) == (trace.completion, "length", len(trace.evictions))
    # 16 slots, 4 of the prompt, 12 for thinking: full after 12 of the 29 fed tokens, then every 3.
    assert made.evictions == 6
    # 1 layer, 2 KV heads, 16 slots of 68 float32 keys and values, and 16 positions of 8 bytes.
    assert made.peak_cache_bytes == 2 * 2 * 16 * 68 * 4 + 16 * 8


def test_characters_of_two_tokens_come_whole(chain):
    loaded, config = chain
    pieces = []
    prompt = loaded.codec.tokenizer("é")["input_ids"]
    made = generate(loaded, config.evict, greedy(config, max_new_tokens=5), prompt, on_text=pieces.append)
    assert pieces == ["é", "é", "\N{REPLACEMENT CHARACTER}"]
    assert made.text == "éé\N{REPLACEMENT CHARACTER}"


def test_a_seed_gives_the_same_text_again_and_another_may_not(chain):
    loaded, config = chain
    prompt = loaded.codec.tokenizer("{")["input_ids"]
    texts = [generate(loaded, config.evict, config.sampling, prompt, seed).text for seed in [*range(8), *range(8)]]
    assert texts[:8] == texts[8:]
    assert set(texts) == {"7}", "8}"}
