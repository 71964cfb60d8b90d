"""Where `model.name` points to, and all that can be refused before torch is imported.

`tiny`, `preset:NAME`, a folder with safetensors, a GGUF file, a model id on the hub (`owner/name`), or a GGUF file
there (`owner/name/file.gguf`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pte_cli.config import ModelConfig
from pte_cli.errors import UsageError
from pte_cli.model import gguf
from pte_cli.model.families import check_family
from pte_cli.model.presets import PREFIX, PRESETS, preset

BUILT_IN = "tiny"
TINY = Path(__file__).parent.parent / "assets" / "tiny"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FOUR_BIT = "bitsandbytes"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
HUB_SECONDS = 10.0


@dataclass(frozen=True)
class Source:
    """A model's place. location: a folder or hub id for `from_pretrained`; file: a GGUF file's name in it, or None."""

    kind: Literal["folder", "hub", "preset"]
    location: str
    file: str | None = None

    @property
    def local(self) -> bool:
        return self.kind != "hub"


def locate(name: str) -> Source:
    """Where `name` points to. UsageError when it is no kind of name that could be a model."""
    if name == BUILT_IN:
        return Source("folder", str(TINY))
    if name.startswith(PREFIX):
        return Source("preset", name)
    path = Path(name).expanduser()
    if name.endswith(gguf.SUFFIX):
        if path.is_file():
            return Source("folder", str(path.parent), path.name)
        repository, _, file = name.rpartition("/")
        if HUB_ID.fullmatch(repository) and not Path(repository).exists():
            return Source("hub", repository, file)
        raise UsageError(f"model.name = {name!r}: there is no such file")
    if path.is_dir():
        return Source("folder", str(path))
    if path.exists():
        raise UsageError(f"model.name = {name!r}: is a file, but not a GGUF file")
    if HUB_ID.fullmatch(name):
        return Source("hub", name)
    raise UsageError(
        f"model.name = {name!r}: neither {BUILT_IN!r}, a folder with a model, a GGUF file, a hub id (owner/name) "
        f"nor a preset ({', '.join(PREFIX + known for known in PRESETS)})"
    )


def describe_model(settings: ModelConfig) -> dict[str, Any]:
    """The model's configuration, from its config.json, its GGUF header or a preset, found fit for us.

    Raises UsageError for a model that is not there, has no weights we load, is of an unsupported kind, or needs a
    package that is not installed. A GGUF file on the hub says what it is only once downloaded: then it is `{}`.
    """
    source = locate(settings.name)
    config = _configuration(settings, source)
    if config:
        check_family(settings.name, config, trusted_code=settings.trust_remote_code)
        check_sizes(settings.name, config)
    if source.kind == "folder" and source.file is None:
        check_weights(settings.name, Path(source.location))
    check_packages(settings, source, config)
    return config


def check_sizes(name: str, config: Mapping[str, Any]) -> None:
    """UsageError for a size in a config.json that is none."""
    for size in SIZES:
        given = config.get(size)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise UsageError(f"model.name = {name!r}: its config.json has {size} = {given!r}; it needs to be 1 or more")


def check_trainable(settings: ModelConfig) -> None:
    """UsageError for a preset: it has sizes but no weights."""
    if settings.name.startswith(PREFIX):
        source = preset(settings.name)["source"]
        raise UsageError(
            f"model.name = {settings.name!r}: a preset has no weights, it is for --dry-run; "
            f"to train, use --model {source} or a folder with its safetensors"
        )


def check_weights(name: str, folder: Path) -> None:
    """UsageError when a folder has no safetensors."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickled:
        raise UsageError(
            f"model.name = {name!r}: its weights are pickled ({pickled[0]}), and loading a pickle can run any code; "
            "convert them to safetensors"
        )
    raise UsageError(f"model.name = {name!r}: no *.safetensors in it")


def check_packages(settings: ModelConfig, source: Source, config: Mapping[str, Any]) -> None:
    """UsageError when the model needs a package that is not installed, or a quantisation that we don't do."""
    if source.file is not None:
        if settings.quantization != "none":
            raise UsageError(
                f"model.quantization = {settings.quantization!r}: a GGUF file is unpacked to {settings.dtype}; "
                "use the model's safetensors for a 4-bit base"
            )
        if find_spec("gguf") is None:
            raise UsageError(
                f"model.name = {settings.name!r}: reading GGUF needs a package: pip install 'pte-cli[gguf]'"
            )
    stored = config.get("quantization_config") or {}
    if stored and not (stored.get("quant_method") == FOUR_BIT and stored.get("load_in_4bit")):
        raise UsageError(
            f"model.name = {settings.name!r}: its weights are quantised ({stored.get('quant_method')!r}); of the "
            "quantised kinds only 4-bit bitsandbytes can be trained on"
        )
    if (stored or settings.quantization == "4bit") and find_spec(FOUR_BIT) is None:
        raise UsageError(
            "model.quantization = '4bit': needs the package bitsandbytes, which is not installed: "
            "pip install 'pte-cli[4bit]'"
        )


def _configuration(settings: ModelConfig, source: Source) -> dict[str, Any]:
    if source.kind == "preset":
        return preset(source.location)
    if source.kind == "hub":
        return {} if source.file else _from_hub(settings, source.location)
    if source.file is not None:
        return gguf.gguf_config(settings.name, gguf.read_header(Path(source.location) / source.file))
    file = Path(source.location) / "config.json"
    if not file.is_file():
        raise UsageError(f"model.name = {settings.name!r}: a folder without a model's config.json")
    try:
        return _parse(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"model.name = {settings.name!r}: its config.json can't be read ({error})") from None


def _parse(content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(config, dict):
        raise ValueError(f"expected an object, got {type(config).__name__}")
    return config


def _from_hub(settings: ModelConfig, repository: str) -> dict[str, Any]:
    """The config.json of a hub id: of the local copy where there is one, else asked for once, without retries."""
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers

    here = f"model.name = {repository!r}"
    cached = try_to_load_from_cache(repository, "config.json", revision=settings.revision)
    if isinstance(cached, str):
        return _parse(Path(cached).read_bytes())
    if constants.HF_HUB_OFFLINE:
        raise UsageError(f"{here}: neither a folder here nor in the local hub cache, and HF_HUB_OFFLINE is set")
    request = Request(hf_hub_url(repository, "config.json", revision=settings.revision))
    for header, value in build_hf_headers().items():
        # Unredirected: a token is for the hub, not for where the hub may send us.
        request.add_unredirected_header(header, value)
    try:
        with urlopen(request, timeout=HUB_SECONDS) as answer:
            return _parse(answer.read())
    except HTTPError as error:
        raise UsageError(f"{here}: {_hub_answer(settings, error.headers.get('X-Error-Code'), error.code)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"{here}: not a folder here, and the hub can't be reached ({reason})") from None


def _hub_answer(settings: ModelConfig, error: str | None, status: int) -> str:
    """The hub's refusal in words. It answers 401 for what is private and for what is not there alike."""
    if error == "GatedRepo":
        return "its hub page asks for an agreement first; accept it, then `hf auth login`"
    if error == "RevisionNotFound":
        return f"has no revision {settings.revision!r} (model.revision)"
    if error == "EntryNotFound":
        return "has no config.json on the hub; for a GGUF file, add its name: OWNER/NAME/FILE.gguf"
    return f"neither a folder here nor a model on the hub that you can see (it answered {status})"
