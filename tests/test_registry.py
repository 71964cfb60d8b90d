"""Finding plugins, and surviving bad ones."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest
from pydantic import BaseModel, ConfigDict

from pte_cli.api import EncoderShape, EncoderSpec, EvictionSpec, LauncherSpec, NoOptions, RewardSpec, TaskSpec
from pte_cli.errors import PteError, UsageError
from pte_cli.registry import KINDS, _entry_points, build, build_registry, check_options, load_registry

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
    assert registry.task("recall").name == "recall"
    assert registry.launcher("local").name == "local"
    assert registry.errors == ()


BROKEN = {
    "import": ("import nothing_of_that_name", "ModuleNotFoundError", 1),
    "syntax": ("x = 1\ndef f(:\n    pass", "SyntaxError", 2),
    "exit": ("print('bye')\nraise SystemExit(3)", "SystemExit: 3", 2),
    "hook": (
        GOOD.format(name="x").replace("return [", 'raise RuntimeError("one\\ntwo"); return ['),
        "RuntimeError: one two",
        6,
    ),
    "version": (GOOD.format(name="x").replace('"mine")', '"mine", api=7)'), "plugin API 7; this is API 1", None),
    "options": (GOOD.format(name="x").replace('"mine")', '"mine", options=int)'), "not a pydantic model", None),
    "spec": (
        GOOD.format(name="x").replace('[EvictionSpec(\'x\', "test", lambda options: "mine")]', "[{}]"),
        "dict",
        None,
    ),
    "name": (GOOD.format(name="a:b"), "eviction policy 'a:b': a name must be letters", None),
    "unknown hook": (
        GOOD.format(name="x").replace("def pte_eviction_policies", "def pte_evictions"),
        "unknown hook",
        None,
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_an_error_and_no_more(plugin, kind, capsys):
    source, reason, line = BROKEN[kind]
    entry = plugin("broken", source)
    registry = build_registry([*_entry_points(), entry])
    [error] = registry.errors
    assert (error.distribution, error.entry_point) == ("someone", "broken")
    assert reason in error.reason
    assert "\n" not in error.reason
    if line is not None:
        assert error.where.endswith(f"broken.py:{line}")
    assert registry.eviction("sliding").name == "sliding"
    assert capsys.readouterr().out == "", "what a plugin prints must not mix with --json"


def test_two_of_one_name_in_one_distribution(plugin):
    twice = GOOD.format(name="keep").replace("return [", "return [EvictionSpec('keep', 'again', None), ")
    entries = [plugin("one", twice), plugin("two", GOOD.format(name="keep"))]
    registry = build_registry(entries)
    assert [error.entry_point for error in registry.errors] == ["one", "two"]
    assert all(e.reason == "announces a second eviction policy called 'keep'" for e in registry.errors)
    assert registry.eviction("keep").summary == "again"


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


EVERY_KIND = """
from pte_cli import hookimpl
from pte_cli.api import *
def make(*_): return "mine"
@hookimpl
def pte_eviction_policies(): return [EvictionSpec("mine", "", make)]
@hookimpl
def pte_encoders(): return [EncoderSpec("mine", "", make)]
@hookimpl
def pte_rewards(): return [RewardSpec("mine", "", make)]
@hookimpl
def pte_tasks(): return [TaskSpec("mine", "", make)]
@hookimpl
def pte_launchers(): return [LauncherSpec("mine", "", make)]
"""


def test_every_kind_has_its_hook(plugin):
    registry = build_registry([plugin("every", EVERY_KIND)])
    assert registry.errors == ()
    chosen = (registry.eviction, registry.encoder, registry.reward, registry.task, registry.launcher)
    kinds = (EvictionSpec, EncoderSpec, RewardSpec, TaskSpec, LauncherSpec)
    assert [type(choose("mine")) for choose in chosen] == list(kinds)
    assert [found.kind.name for found in registry.found] == list(KINDS)
    assert registry.find("mine", "task").spec is registry.task("mine")
    with pytest.raises(UsageError, match=r"several kinds; add --kind encoder or evict or launcher or reward or task"):
        registry.find("mine")
    with pytest.raises(UsageError, match=r"reward.names = 'mien': no such plugin; did you mean 'mine'"):
        registry.reward("mien")


@pytest.mark.parametrize(
    ("allowed", "imported", "names", "warnings"),
    [
        (None, ["a", "b"], {"x", "y"}, []),
        ("", [], set(), []),
        ("Dist_A", ["a"], {"x"}, []),
        ("dist-b:y", ["b"], {"y"}, []),
        ("dist-b:z", ["b"], set(), ["'dist-b:z'"]),
        (" dist-a , nothing,dist-b:y", ["a", "b"], {"x", "y"}, ["'nothing'"]),
    ],
)
def test_the_allow_list(plugin, allowed, imported, names, warnings):
    """A plugin that is not allowed is not even imported; built-ins always are."""
    a = plugin("allow_a", GOOD.format(name="x"), "dist-a")
    b = plugin("allow_b", GOOD.format(name="y"), "dist.b")
    registry = build_registry([*_entry_points(), a, b], allowed)
    assert [name[-1] for name in ("allow_a", "allow_b") if name in sys.modules] == imported
    assert {found.spec.name for found in registry.found if found.distribution != "pte-cli"} == names
    assert registry.eviction("sliding").name == "sliding"
    assert [w.partition(": ")[2].split(" names")[0] for w in registry.warnings] == warnings


class Sized(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 3
    tag: str = "a"
    names: tuple[str, ...] = ()
    on: bool = False


def test_what_a_flag_says_becomes_what_the_option_is():
    spec = EvictionSpec("mine", "", lambda options: None, options=Sized)
    given = {"size": "7", "tag": 12, "names": "a, b", "on": "true"}
    assert check_options("evict.options", spec, given) == Sized(size=7, tag="12", names=("a", "b"), on=True)
    with pytest.raises(UsageError, match=r"evict.options.size = 'many': Input should be a valid integer"):
        check_options("evict.options", spec, {"size": "many", "tag": 12})
    with pytest.raises(UsageError, match=r"evict.budgt = 3: unknown setting; did you mean 'budget'"):
        check_options("evict.options", spec, {"budgt": 3}, ["budget", "policy"])


def test_a_build_that_fails_is_one_line_with_plugin_options_and_place():
    def build_badly(options):
        raise RuntimeError("no\nluck")

    spec = EvictionSpec("mine", "", build_badly, options=Sized)
    with pytest.raises(PteError) as caught:
        build(spec, {"size": 9})
    message = str(caught.value)
    assert message.startswith("eviction policy 'mine' with evict.options = {'size': 9, 'tag': 'a'")
    assert "its build() failed: RuntimeError: no luck" in message
    assert "test_registry.py:" in message
    assert "\n" not in message
    with pytest.raises(
        PteError, match=r"encoder 'odd' .*: its build\(\) returned str without rotated_keys, init, absorb"
    ):
        build(EncoderSpec("odd", "", lambda options, shape: "x", NoOptions), {}, EncoderShape(1, 2, 1, 2, 2))
