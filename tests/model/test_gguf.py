"""GGUF files, written here as llama.cpp writes them: the unpacked model gives the original's logits."""

from __future__ import annotations

import json
import sys
from subprocess import run

import pytest
import torch
from helpers import VOCAB, causal_lm, policy, prompts

from pte_cli.config import ModelConfig
from pte_cli.errors import UsageError
from pte_cli.model.adapter import add_adapter
from pte_cli.model.gguf import gguf_config, read_header
from pte_cli.model.load import load_model
from pte_cli.model.shapes import base_parameters, model_shape
from pte_cli.model.source import describe_model
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.sampling import Sampling
from pte_cli.train.replay import replay

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (pip install 'pte-cli[gguf]')")

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
SIZES = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 128}}


def write(path, model, kind, *, packed=False, more=lambda writer: None):
    """The model in llama.cpp's layout, weights in float32 or in 8-bit blocks."""
    config = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(33 + i) for i in range(VOCAB - 3)] + ["AB", "<s>", "</s>"])
    writer.add_token_types([1] * (VOCAB - 2) + [3, 3])
    writer.add_token_merges(["A B"])
    writer.add_eos_token_id(VOCAB - 1)
    for name, weight in model.state_dict().items():
        parts = name.removeprefix("model.").split(".")
        if parts[0] == "layers":
            target = f"blk.{parts[1]}.{NAMES['.'.join(parts[2:-1])]}.{parts[-1]}"
        else:
            target = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[0]] + ".weight"
        data = weight.float().numpy()
        if kind == "llama" and (".attn_q." in target or ".attn_k." in target):
            # llama.cpp pairs neighbouring dimensions for RoPE, transformers the two halves of a head.
            heads = config.num_attention_heads if ".attn_q." in target else config.num_key_value_heads
            data = data.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(data.shape)
        if packed and data.ndim == 2:
            kind_of_block = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, gguf.quants.quantize(data, kind_of_block), raw_dtype=kind_of_block)
        else:
            writer.add_tensor(target, data)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def settings(path, **more):
    return ModelConfig(name=str(path), dtype="float32", device="cpu", **more)


@pytest.mark.parametrize("kind", SIZES)
def test_an_unpacked_model_gives_the_originals_logits(tmp_path, kind):
    original = causal_lm(kind, **SIZES[kind])
    path = write(tmp_path / "model.gguf", original, kind)
    model, tokenizer = load_model(settings(path))
    ids = torch.tensor(prompts([20]))
    assert (model(ids).logits - original(ids).logits).abs().max() < 1e-4
    assert tokenizer.eos_token_id == VOCAB - 1
    assert tokenizer("ABCA", add_special_tokens=False)["input_ids"] == [VOCAB - 3, 34, 32]
    assert base_parameters(model_shape(describe_model(settings(path)))) == sum(p.numel() for p in original.parameters())


def test_blocks_are_unpacked_so_that_the_model_trains_and_saves(tmp_path):
    original = causal_lm("llama", hidden=128)
    path = write(tmp_path / "model.gguf", original, "llama", packed=True)
    assert path.stat().st_size < 0.5 * 4 * sum(p.numel() for p in original.parameters())
    base, _ = load_model(settings(path))
    assert getattr(base, "hf_quantizer", None) is None
    assert base.model.layers[0].mlp.up_proj.weight.dtype == torch.float32
    error = (base.model.layers[0].mlp.up_proj.weight - original.model.layers[0].mlp.up_proj.weight).abs().max()
    # 8-bit blocks: half a step of the largest weight of a block, about 4.5 standard deviations of 0.2.
    assert 0 < error <= 1.2 / 127
    model = BoundedModel(add_adapter(base, encoder="pte", rank=4))
    sampling = Sampling(max_new_tokens=40)
    traces = RolloutEngine(model, policy("sliding"), Budget(24, 0.25), sampling).generate(prompts([5, 9]))
    replay(model, traces, policy("sliding"), loss=lambda scored: -scored.logprobs.mean())
    gradients = [p.grad for name, p in model.model.named_parameters() if "lora_B" in name]
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    base.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()


def test_a_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(UsageError, match="not a readable GGUF file .it does not start with GGUF"):
        describe_model(settings(path))
    write(path, causal_lm("llama"), "llama")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UsageError, match="not a readable GGUF file"):
        describe_model(settings(path))


def test_an_architecture_that_is_not_tested_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", causal_lm("llama"), "gemma2")
    with pytest.raises(UsageError, match="GGUF architecture 'gemma2' is not supported .supported: llama, qwen2, qwen3"):
        describe_model(settings(path))


@pytest.mark.parametrize(
    "more",
    [
        lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        lambda writer: writer.add_tensor("rope_freqs.weight", torch.ones(4).numpy()),
    ],
    ids=["yarn", "llama 3"],
)
def test_scaled_rope_is_refused_since_transformers_would_drop_it(tmp_path, more):
    path = write(tmp_path / "model.gguf", causal_lm("llama"), "llama", more=more)
    with pytest.raises(UsageError, match="its RoPE is scaled"):
        gguf_config("m", read_header(path))


def test_four_bits_on_top_of_gguf_are_refused(tmp_path):
    path = write(tmp_path / "model.gguf", causal_lm("llama"), "llama")
    with pytest.raises(UsageError, match="model.quantization = '4bit': a GGUF file is unpacked to float32"):
        describe_model(settings(path, quantization="4bit"))


def test_the_command_line_reads_the_header_only(tmp_path):
    path = write(tmp_path / "model.gguf", causal_lm("llama"), "llama")
    command = [sys.executable, "-m", "pte_cli", "train", "--dry-run", "--json", "--model", str(path)]
    done = run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["sizes"]["parameters"]["base, frozen"] == sum(
        p.numel() for p in causal_lm("llama").parameters()
    )
