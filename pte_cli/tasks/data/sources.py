"""Where rows come from: a file, a folder with one file a split, a reasoning-gym task, or the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pte_cli.config import DataConfig
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.tasks.data.files import READERS, Raw, read_file

GYM = "gym:"
GYM_ROWS = 1000
"""Problems drawn from a gym task when `data.limit` does not say how many."""
DEFAULT_SPLIT = "train"


def read_rows(setting: str, source: str, split_setting: str, split: str | None, data: DataConfig) -> list[Raw]:
    """The rows of `source`, at least one. setting, split_setting: what to call the two in a message.

    Raises UsageError for what is not there or can't be read.
    """
    if source.startswith(GYM):
        rows = _gym_rows(setting, source, split, data)
    elif is_local(source):
        path = _local_file(setting, Path(source).expanduser(), split_setting, split)
        rows = read_file(setting, path, data.limit)
    else:
        rows = _hub_rows(setting, source, split_setting, split or DEFAULT_SPLIT, data)
    if not rows:
        raise UsageError(f"{setting} = {source!r}: no rows in it")
    return rows


def is_local(source: str) -> bool:
    """Whether a source is a path: it is there, or can't be a hub id, which is OWNER/NAME."""
    if source.startswith(GYM):
        return False
    path = Path(source).expanduser()
    written = source.startswith((".", "/", "~")) or path.suffix.lower() in READERS or source.count("/") != 1
    return written or path.exists() or path.parent.is_dir()


def absolute(source: str | None) -> str | None:
    """A local path as it works from anywhere; other sources as they are."""
    return str(Path(source).expanduser().absolute()) if source and is_local(source) else source


def _local_file(setting: str, path: Path, split_setting: str, split: str | None) -> Path:
    """The file to read: `path` itself, or the one called after the split where it is a folder."""
    if path.is_file():
        if split is not None:
            raise UsageError(f"{split_setting} = {split!r}: {str(path)!r} is one file and has no splits; leave it out")
        return path
    if not path.is_dir():
        near = sorted(p.name for p in path.parent.iterdir() if p.suffix in READERS) if path.parent.is_dir() else []
        hint = f"; {did_you_mean(path.name, near)}" if near else ""
        raise UsageError(f"{setting} = {str(path)!r}: no such file{hint} (a hub id is OWNER/NAME)")
    wanted = split or DEFAULT_SPLIT
    if Path(wanted).name != wanted:
        raise UsageError(f"{split_setting} = {wanted!r}: is no name of a file in {str(path)!r}; leave the folder out")
    found = [path / f"{wanted}{suffix}" for suffix in READERS if (path / f"{wanted}{suffix}").is_file()]
    if len(found) != 1:
        names = sorted(p.name for p in path.iterdir() if p.suffix in READERS)
        raise UsageError(
            f"{setting} = {str(path)!r}: {len(found) or 'no'} files for {split_setting} = {wanted!r}; "
            f"in it: {', '.join(names) or 'no data files'}"
        )
    return found[0]


def _gym_rows(setting: str, source: str, split: str | None, data: DataConfig) -> list[Raw]:
    """Problems of a reasoning-gym task; those of the split `eval` are others than those of `train`."""
    name = source.removeprefix(GYM)
    seeds = {"train": 0, "eval": 2**40}  # problem i of seed s is problem 0 of seed s + i: far apart, or they are shared
    if (split or DEFAULT_SPLIT) not in seeds:
        raise UsageError(f"{setting} = {source!r}: its splits are {' and '.join(seeds)}, not {split!r}")
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UsageError(f"{setting} = {source!r}: needs reasoning-gym ({error}); pip install 'pte-cli[gym]'") from None
    if name not in DATASETS:
        raise UsageError(f"{setting} = {source!r}: unknown task; {did_you_mean(name, DATASETS)}")
    settings: dict[str, Any] = {"size": data.limit or GYM_ROWS, "seed": seeds[split or DEFAULT_SPLIT], **data.options}
    try:
        made = reasoning_gym.create_dataset(name, **settings)
        return [Raw(f"{source} number {i}", dict(made[i])) for i in range(settings["size"])]
    except (TypeError, ValueError, AssertionError) as error:
        raise UsageError(f"data.options = {data.options!r}: {name} refuses them ({error})") from None


def _hub_rows(setting: str, source: str, split_setting: str, split: str, data: DataConfig) -> list[Raw]:
    from datasets import load_dataset

    subset = "" if data.subset is None else f" with data.subset = {data.subset!r}"
    try:
        table = load_dataset(source, data.subset, split=split)
    except Exception as error:  # the library's own errors, the network's and those of the files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"{setting} = {source!r}: neither a file or folder here nor a data set that can be loaded from the hub"
            f"{subset} and {split_setting} = {split!r} ({reason})"
        ) from None
    chosen = table if data.limit is None else table.select(range(min(data.limit, len(table))))
    return [Raw(f"{source} row {i}", dict(row)) for i, row in enumerate(chosen)]
