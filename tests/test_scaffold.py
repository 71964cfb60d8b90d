"""Names and places of new plugins. What the packages do is tested where they are installed (test_distributions)."""

from __future__ import annotations

import pytest

from pte_cli.errors import UsageError
from pte_cli.scaffold import check_name, write_plugin


@pytest.mark.parametrize("name", ["mine", "my-own", "a1-b2-c3", "x"])
def test_good_names(name):
    check_name(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My_Own", "use 'my-own'"),
        ("my.own", "use 'my-own'"),
        ("-own", "use 'own'"),
        ("1st", "a letter first"),
        ("", "a letter first"),
        ("a/b", "a letter first"),
        ("../up", "a letter first"),
        ("json", "there is a module 'json' already"),
        ("torch", "there is a module 'torch' already"),
        ("class", "there is a module 'class' already"),
        ("tests", "there is a module 'tests' already"),
        ("pte-cli", "there is a module 'pte_cli' already"),
    ],
)
def test_bad_names(name, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        write_plugin(name, "evict", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_kinds_are_known(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("mine")
    (tmp_path / "empty").mkdir()
    for taken in ("file", "full"):
        with pytest.raises(UsageError, match="exists already; nothing is overwritten"):
            write_plugin("own", "evict", tmp_path / taken)
    with pytest.raises(UsageError, match="--kind 'evicts': no template; did you mean 'evict'"):
        write_plugin("own", "evicts", tmp_path / "new")
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"file", "kept"}
    files = write_plugin("own", "evict", tmp_path / "empty")
    assert [f.name for f in files] == ["README.md", "own.py", "pyproject.toml", "test_own.py"]
