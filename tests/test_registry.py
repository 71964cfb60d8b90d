"""Finding plugins, and surviving bad ones."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from pte_cli.errors import UsageError
from pte_cli.registry import _entry_points, build_registry, check_options, load_registry

GOOD = """
from pte_cli import hookimpl
from pte_cli.api import EvictionSpec
@hookimpl
def pte_eviction_policies():
    return [EvictionSpec({name!r}, "test", lambda options: "mine")]
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Writes a module and returns its entry point, as (distribution, entry point)."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, source, distribution="someone"):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return distribution, EntryPoint(name, name, "pte")

    return write


def test_built_ins_arrive_through_entry_points():
    registry = load_registry()
    assert {found.spec.name for found in registry.evictions} >= {"full", "sliding"}
    assert {found.spec.name for found in registry.encoders} >= {"none", "pte"}
    assert registry.errors == ()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            GOOD.format(name="x").replace("return [", 'raise RuntimeError("oops"); return ['),
            "RuntimeError: oops",
        ),
        (GOOD.format(name="x").replace('"mine")', '"mine", api=7)'), "plugin API 7; this is API 1"),
        (GOOD.format(name="x").replace('"mine")', '"mine", options=int)'), "not a pydantic model"),
        (
            GOOD.format(name="x")
            .replace("EvictionSpec('x'", "dict(a='x'")
            .replace(', "test", lambda options: "mine"', ""),
            "dict",
        ),
        (GOOD.format(name="x").replace("def pte_eviction_policies", "def pte_evictions"), "unknown hook"),
    ],
)
def test_a_broken_plugin_is_an_error_and_no_more(plugin, source, reason):
    registry = build_registry([*_entry_points(), plugin("broken", source)])
    [error] = registry.errors
    assert (error.distribution, error.entry_point) == ("someone", "broken")
    assert reason in error.reason
    assert registry.eviction("sliding").name == "sliding"


def test_two_plugins_of_one_name_must_be_told_apart(plugin):
    entries = [
        plugin("one", GOOD.format(name="keep"), "dist-a"),
        plugin("two", GOOD.format(name="keep"), "dist-b"),
    ]
    registry = build_registry(entries)
    with pytest.raises(UsageError, match=r"dist-a:keep or dist-b:keep"):
        registry.eviction("keep")
    assert registry.eviction("dist-b:keep").build(None) == "mine"


def test_a_built_in_name_can_not_be_taken(plugin):
    registry = build_registry([*_entry_points(), plugin("thief", GOOD.format(name="sliding"))])
    assert registry.eviction("sliding").build(None) != "mine"
    assert registry.eviction("someone:sliding").build(None) == "mine"


def test_unknown_names_and_options_get_a_hint():
    with pytest.raises(UsageError, match=r"encoder.name = 'ptee': .*did you mean 'pte'"):
        load_registry().encoder("ptee")
    spec = load_registry().encoder("pte")
    with pytest.raises(
        UsageError, match=r"encoder.options.normalise = 'row': unknown option; did you mean 'normalize'"
    ):
        check_options("encoder.options", spec, {"normalise": "row"})
    with pytest.raises(UsageError, match=r"encoder.options.global_tokens = 0: "):
        check_options("encoder.options", spec, {"global_tokens": 0})
    with pytest.raises(UsageError, match=r"'none' takes no options"):
        check_options("encoder.options", load_registry().encoder("none"), {"x": 1})
