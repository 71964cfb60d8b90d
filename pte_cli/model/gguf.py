"""The header of a GGUF file, read without torch: what the model is, before gigabytes of weights are unpacked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The weights themselves are read by transformers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pte_cli.errors import UsageError

SUFFIX = ".gguf"
TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF architecture to model type, as far as unpacked weights are tested to give the model's own logits."""
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Header:
    """metadata: the file's keys; an array is given by its length. tensors: names and shapes, slowest axis first."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]


def read_header(path: Path) -> Header:
    """The header of a GGUF file (versions 2 and 3); UsageError when it is none."""
    try:
        with path.open("rb") as file:
            return _header(file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UsageError(f"model.name = {str(path)!r}: not a readable GGUF file ({error})") from None


def gguf_config(name: str, header: Header) -> dict[str, Any]:
    """What a config.json of this model would say about its type and sizes. UsageError for an unknown architecture."""
    data = header.metadata
    kind = data.get("general.architecture")
    if kind not in TYPES:
        raise UsageError(
            f"model.name = {name!r}: GGUF architecture {kind!r} is not supported (supported: {', '.join(TYPES)}); "
            "use the model's safetensors instead"
        )
    scaling = data.get(f"{kind}.rope.scaling.type", "none")
    if "rope_freqs.weight" in header.tensors or scaling != "none":
        raise UsageError(
            f"model.name = {name!r}: its RoPE is scaled, and transformers leaves that out when it reads GGUF (the text "
            "would be worse than the model's); use the model's safetensors instead"
        )
    width, heads = data[f"{kind}.embedding_length"], data[f"{kind}.attention.head_count"]
    return {
        "model_type": TYPES[kind],
        "hidden_size": width,
        "intermediate_size": data[f"{kind}.feed_forward_length"],
        "num_hidden_layers": data[f"{kind}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": data.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": data.get(f"{kind}.attention.key_length", width // heads),
        "vocab_size": header.tensors["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }


def _header(file: BinaryIO) -> Header:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    version, tensors, entries = _unpack(file, "IQQ")
    if version not in (2, 3):
        raise ValueError(f"version {version}; known are 2 and 3")
    metadata = {}
    for _ in range(entries):
        key = _string(file)
        [kind] = _unpack(file, "I")
        metadata[key] = _value(file, kind)
    shapes = {}
    for _ in range(tensors):
        name = _string(file)
        [axes] = _unpack(file, "I")
        shapes[name] = tuple(reversed(_unpack(file, f"{axes}Q")))
        _unpack(file, "IQ")
    return Header(metadata, shapes)


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    form = f"<{form}"
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _string(file: BinaryIO) -> str:
    [length] = _unpack(file, "Q")
    return file.read(length).decode("utf-8", errors="replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _string(file)
    if kind != ARRAY:
        return _unpack(file, FIXED[kind])[0]
    inner, length = _unpack(file, "IQ")
    if inner in FIXED:
        file.seek(length * struct.calcsize(f"<{FIXED[inner]}"), 1)
    else:
        for _ in range(length):
            _value(file, inner)
    return length
