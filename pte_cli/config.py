"""The settings of a run: one frozen model, filled from defaults < file < PTE_* variables < flags < --set.

In the sections evict, encoder and task a key that is no setting is an option of the strategy chosen there:
`evict.n_sink` is short for `evict.options.n_sink`. checks.py asks the strategy whether it has such an option.

Imports neither torch nor transformers: a wrong setting is reported at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pte_cli.errors import UsageError
from pte_cli.setting_errors import explain

ENV_PREFIX = "PTE_"
ENV_OTHER = {"PTE_PLUGINS"}


class Section(BaseModel):
    """Frozen; a misspelt key is an error, and so is a number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _listed(given: Any) -> Any:
    """`a,b` as people write it on a command line."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",")]
    return [given] if isinstance(given, int | float) else given


class ModelConfig(Section):
    name: str = Field(
        "tiny",
        description="the built-in model (tiny), a folder with safetensors, a GGUF file, a hub id, or preset:NAME",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = Field("float32", description="weights and cache")
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$", description="auto, cpu, cuda, cuda:N or mps"
    )
    quantization: Literal["none", "4bit"] = Field("none", description="of the frozen base; 4bit needs bitsandbytes")
    trust_remote_code: bool = Field(False, description="run the code that a model brings with it")


class TaskConfig(Section):
    name: str = Field("recall", description="task plugin")
    options: dict[str, Any] = Field(default_factory=dict, description="the task's own options")


class ColumnsConfig(Section):
    prompt: str | None = Field(None, description="text or chat messages; prompt, problem, question or messages")
    answer: str | None = Field(None, description="the reference; answer or solution")
    completion: str | None = Field(None, description="a recorded completion; completion or response")


class DataConfig(Section):
    source: str | None = Field(
        None, description="a JSONL, JSON, CSV or Parquet file, a folder of them, gym:NAME or a hub id; none: the task"
    )
    subset: str | None = Field(None, description="the hub data set's configuration")
    split: str | None = Field(None, description="train by default; of a folder: the file of that name")
    limit: int | None = Field(None, ge=1, description="rows at most")
    columns: ColumnsConfig = ColumnsConfig()
    answer_after: str | None = Field(None, min_length=1, description="the reference is what follows the last of these")
    style: Literal["auto", "plain", "chat", "qwen-math", "r1-distill"] = Field("auto", description="prompt style")
    system: str | None = Field(None, description="system prompt of the style chat")
    too_long: Literal["error", "drop"] = Field("error", description="prompts that the budget can't hold")
    eval_source: str | None = Field(None, description="held-out rows from here")
    eval_split: str | None = Field(None, description="held-out rows from this split")
    eval_fraction: float | None = Field(None, ge=0, lt=1, description="share of the rows held out otherwise (0.1)")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the gym task")


class RewardConfig(Section):
    """Rewards for rows of data; the first one also says what is right."""

    names: tuple[str, ...] = Field((), description="reward plugins (default: math-verify where rows have an answer)")
    weights: tuple[float, ...] = Field((), description="one for each (default: 1)")
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="options of each, by its name")

    _listed = field_validator("names", "weights", mode="before")(_listed)


class EvictConfig(Section):
    policy: str = Field("sliding", description="eviction policy plugin")
    budget: int = Field(48, ge=5, description="cached tokens per layer and head of one sequence, prompt included")
    frac: float = Field(0.25, gt=0, le=1, description="share of the window that leaves each time it is full")
    options: dict[str, Any] = Field(default_factory=dict, description="the policy's own options")


class EncoderConfig(Section):
    name: str = Field("pte", description="encoder plugin")
    options: dict[str, Any] = Field(default_factory=dict, description="the encoder's own options")


class AdapterConfig(Section):
    rank: int = Field(32, ge=1, description="LoRA rank r, and the size of the core")
    alpha: float | None = Field(None, gt=0, description="LoRA alpha; the scale is alpha / rank (default: alpha = rank)")
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="names of linear layers, at least one",
    )

    _listed = field_validator("target_modules", mode="before")(_listed)


class SamplingConfig(Section):
    temperature: float = Field(1.0, ge=0, description="0 is greedy; training by GRPO needs more than 0")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; 1 is off")
    top_k: int = Field(0, ge=0, description="0 is off")
    max_new_tokens: int = Field(64, ge=1, description="tokens per completion")
    rows: int = Field(128, ge=1, description="sequences generated at the same time")
    compile: bool = Field(False, description="decoding steps as machine code; needs a C++ compiler, and minutes for it")


class SftConfig(Section):
    steps: int = Field(400, ge=0, description="optimizer steps on worked examples")
    batch: int = Field(64, ge=1, description="examples per step")
    learning_rate: float | None = Field(
        None, gt=0, description="peak, of AdamW; falls linearly to 0 (default: 2e-3 for tiny, 2e-4 for other models)"
    )
    answer_weight: float = Field(4.0, gt=0, description="weight of an answer token; a thinking token has 1")


class GrpoConfig(Section):
    steps: int = Field(40, ge=0, description="optimizer steps")
    prompts: int = Field(16, ge=1, description="problems per rollout")
    group_size: int = Field(8, ge=2, description="completions per problem (at least 2: they are compared)")
    num_iterations: int = Field(1, ge=1, description="optimizer steps on each rollout")
    learning_rate: float | None = Field(
        None, gt=0, description="peak, of AdamW; falls linearly to 0 (default: 3e-4 for tiny, 2e-5 for other models)"
    )
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo"] = Field("dapo", description="as in TRL")
    epsilon: float = Field(0.2, gt=0, description="the probability ratio is clipped below 1 - epsilon")
    epsilon_high: float | None = Field(None, gt=0, description="and above 1 + epsilon_high (default: epsilon)")
    delta: float | None = Field(None, gt=1, description="upper bound of the unclipped ratio (two-sided clipping)")
    scale_rewards: Literal["group", "batch", "none"] = Field("group", description="whose spread divides advantages")
    beta: float = Field(0.0, ge=0, description="weight of the KL to the model without adapter; 0 skips it")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Schulman's estimates of the KL")
    mask_truncated_completions: bool = Field(False, description="completions cut off count in no loss and divisor")
    importance_sampling: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "none", description="correction of what is left between the probabilities of rollout and replay"
    )
    importance_sampling_cap: float = Field(3.0, gt=1, description="upper bound of that correction's ratio")


class TrainConfig(Section):
    objective: Literal["sft", "grpo", "sft+grpo"] = Field("sft", description="what is optimised, in this order")
    gradient: Literal["truncated", "exact"] = Field(
        "exact", description="exact: through cached keys and values too; truncated: not through those (the paper)"
    )
    micro_batch: int = Field(128, ge=1, description="sequences replayed together")
    encoder_lr_ratio: float = Field(1.0, gt=0, description="the encoder's learning rate as a multiple of LoRA's")
    warmup: int = Field(20, ge=0, description="steps of linear warm-up at the start of each objective")
    max_grad_norm: float = Field(1.0, gt=0, description="a longer gradient is scaled down to this norm")
    gradient_checkpointing: bool = Field(False, description="keep one layer's activations at a time, compute twice")
    save_every: int = Field(50, ge=0, description="steps between checkpoints; 0: only when interrupted")
    keep_checkpoints: int = Field(2, ge=1, description="the newest ones are kept")
    completions_every: int = Field(10, ge=0, description="steps between tables of sampled completions; 0: none")
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = Field((), description="also log to these")

    _listed = field_validator("trackers", mode="before")(_listed)


class EvalConfig(Section):
    problems: int = Field(256, ge=1, description="held-out problems")
    seed: int = Field(0, ge=0, description="which held-out problems")


LEARNING_RATES = {"sft": (2e-3, 2e-4), "grpo": (3e-4, 2e-5)}
"""Of each objective: for the built-in model, which has much to learn, and for models trained on much more."""


class RunConfig(Section):
    """Everything that determines a run. `out` is where it is written and no part of its identity."""

    seed: int = Field(0, ge=0, lt=2**32, description="of everything random")
    out: str | None = Field(None, description="the run's folder; by default a new one in runs/")
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    evict: EvictConfig = EvictConfig()
    encoder: EncoderConfig = EncoderConfig()
    adapter: AdapterConfig = AdapterConfig()
    sampling: SamplingConfig = SamplingConfig()
    sft: SftConfig = SftConfig()
    grpo: GrpoConfig = GrpoConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()

    def phases(self) -> list[tuple[str, int]]:
        """(objective, optimizer steps) of the training, in order."""
        counts = {"sft": self.sft.steps, "grpo": self.grpo.steps}
        return [(name, counts[name]) for name in self.train.objective.split("+")]

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return sum(count for _, count in self.phases())

    def learning_rate(self, phase: str) -> float:
        """The peak learning rate of the objective `sft` or `grpo`."""
        given = self.sft.learning_rate if phase == "sft" else self.grpo.learning_rate
        return given if given is not None else LEARNING_RATES[phase][self.model.name != "tiny"]

    def identity(self) -> str:
        """12 hexadecimal digits that two runs share exactly when all their settings but `out` are equal."""
        canonical = json.dumps(self.model_dump(mode="json", exclude={"out"}), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


CHOICES = {"evict": "policy", "encoder": "name", "task": "name"}
"""The sections of strategies, and the setting of each that chooses one; unknown keys are the strategy's options."""


def load_config(
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The settings of a run. `flags` has dotted keys; None values are flags that were not given.

    defaults: dotted too, where a command's differ from those of training; anything given goes over them.

    Raises UsageError, one line that names the setting, its value and what would work.
    """
    tree: dict[str, Any] = {}
    _add(tree, "defaults", list((defaults or {}).items()))
    _add(tree, "--config", _dotted(read_file(file)) if file is not None else [])
    _add(tree, "environment", _environment(os.environ if env is None else env))
    _add(tree, "flags", [(name, value) for name, value in (flags or {}).items() if value is not None])
    _add(tree, "--set", [assignment(item) for item in sets])
    return _validated(tree)


def validate(tree: Mapping[str, Any]) -> RunConfig:
    """A RunConfig from a nested mapping; UsageError for the first thing that is wrong."""
    own: dict[str, Any] = {}
    _add(own, "settings", _dotted(tree))
    return _validated(own)


def layered_tree(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Settings, nested or dotted, of several (source, settings) put over each other: a tree, not validated yet."""
    tree: dict[str, Any] = {}
    for source, settings in layers:
        _add(tree, source, _dotted(settings))
    return tree


def _validated(tree: Mapping[str, Any]) -> RunConfig:
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise UsageError(explain(error, RunConfig)) from None
    if "grpo" in config.train.objective and config.sampling.temperature == 0:
        raise UsageError(
            "sampling.temperature = 0.0: all completions of a group would be equal and GRPO could learn nothing; "
            "use more than 0"
        )
    settings = config.grpo
    if settings.delta is not None and settings.loss_type in ("cispo", "gspo"):
        raise UsageError(
            f"grpo.delta = {settings.delta}: has no meaning for grpo.loss_type = {settings.loss_type!r}; leave it out"
        )
    return config


def read_file(file: Path) -> dict[str, Any]:
    """A configuration file, TOML as people write it or the config.json of a run."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {str(file)!r}: can't be read ({error})") from None
    try:
        tree = json.loads(text) if file.suffix == ".json" else tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config {str(file)!r}: {error}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"--config {str(file)!r}: expected a table of settings, got {type(tree).__name__}")
    return tree


def _environment(env: Mapping[str, str]) -> list[tuple[str, Any]]:
    """PTE_EVICT__BUDGET=64 is evict.budget = 64."""
    names = sorted(name for name in env if name.startswith(ENV_PREFIX) and name not in ENV_OTHER)
    found = [(name.removeprefix(ENV_PREFIX).lower().replace("__", "."), _value(env[name])) for name in names]
    for name, (setting, _) in zip(names, found, strict=True):
        if setting.partition(".")[0] not in RunConfig.model_fields:
            raise UsageError(f"{name} = {env[name]!r}: no setting; unset it, or write PTE_SECTION__NAME")
    return found


def assignment(item: str) -> tuple[str, Any]:
    """NAME and value of a `--set NAME=VALUE`."""
    name, separator, text = item.partition("=")
    if not separator or not all(part.strip() for part in name.split(".")):
        raise UsageError(f"--set {item!r}: expected KEY=VALUE, for example --set evict.frac=0.5")
    return name.strip(), _value(text)


def _dotted(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of a nested mapping, sections taken apart, one level deep."""
    found: list[tuple[str, Any]] = []
    for section, content in tree.items():
        inner = content if isinstance(content, dict) and section in RunConfig.model_fields else None
        found += [(section, content)] if inner is None else [(f"{section}.{key}", v) for key, v in inner.items()]
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting of a nested mapping by its dotted name, however deep."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _value(text: str) -> Any:
    """A TOML value, or the text itself where it is none (`sliding` needs no quotes)."""
    try:
        return tomli.loads(f"value = {text}")["value"]
    except (tomli.TOMLDecodeError, RecursionError):
        return text.strip()


def _add(tree: dict[str, Any], source: str, settings: Sequence[tuple[str, Any]]) -> None:
    """Put the settings of one source over those of the sources before it.

    A strategy chosen over another one leaves that one's options behind.
    """
    spelt: dict[str, tuple[str, Any]] = {}
    whole = {_canonical(name): (name, value) for name, value in settings}
    for name, value in settings:
        for short, given in _options_in(name, value):
            other, before = spelt.setdefault(short, (name, given))
            if other != name and before != given:
                raise UsageError(f"{name} = {given!r}: {source} also has {other} = {before!r}; they are one setting")
    for section, choice in CHOICES.items():
        there = tree.get(section)
        chosen = whole.get(f"{section}.{choice}")
        if chosen and isinstance(there, dict) and there.get(choice, chosen[1]) != chosen[1]:
            there.pop("options", None)
    # A table of options first, then single ones into it.
    for name, (_, value) in sorted(whole.items(), key=lambda item: not item[0].endswith(".options")):
        _put(tree, name, dict(value) if isinstance(value, dict) else value)


def _options_in(name: str, value: Any) -> list[tuple[str, Any]]:
    """The strategy options that a setting gives, each as (canonical name, value)."""
    canonical = _canonical(name)
    section, _, rest = canonical.partition(".")
    if section not in CHOICES or not rest.startswith("options"):
        return []
    if rest == "options":
        return [(f"{canonical}.{key}", v) for key, v in value.items()] if isinstance(value, dict) else []
    return [(canonical, value)]


def _canonical(name: str) -> str:
    """evict.n_sink is evict.options.n_sink: what is no setting of a strategy's section is an option of it."""
    section, _, rest = name.partition(".")
    if section in CHOICES and rest and rest.partition(".")[0] not in section_settings(section):
        return f"{section}.options.{rest}"
    return name


def section_settings(section: str) -> list[str]:
    """The settings a section has itself."""
    return list(type(RunConfig.model_fields[section].default).model_fields)


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for i, key in enumerate(path):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise UsageError(f"{dotted}: {'.'.join(path[: i + 1])} is a setting, not a section")
    tree[last] = value
