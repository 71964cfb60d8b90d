"""The documentation's site builds without a warning, and its reference is what the program is."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from pte_cli.cli.app import app
from pte_cli.config import RunConfig
from pte_cli.registry import BUILTIN, load_registry

pytest.importorskip("furo", reason="sphinx and myst-parser are not installed: pip install 'pte-cli[docs]'")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as anyone builds it; unknown links, pages in no table of contents and bad markup are errors."""
    from sphinx.cmd.build import build_main

    folder = tmp_path_factory.mktemp("site")
    strict = ["-W", "--keep-going", "-n", "-q"]
    assert build_main([*strict, "-d", str(folder / "trees"), str(DOCS), str(folder / "html")]) == 0
    return folder / "html"


def text(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_built_and_its_markup_read(site):
    for source in DOCS.glob("*.md"):
        page = site / f"{source.stem}.html"
        body = re.sub(r"<(code|pre)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        shown = html.unescape(re.sub(r"<[^>]+>", "", body))
        assert not re.search(r"\]\(|```|\*\*|^\s*\|.*\|", shown, flags=re.MULTILINE), source.name


def options_of(command):
    """Every option's spelling, of the command and of those below it."""
    found = {name for p in command.params if p.param_type_name == "option" for name in (*p.opts, *p.secondary_opts)}
    return found.union(*map(options_of, getattr(command, "commands", {}).values()))


def paths_of(path, command):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths_of(f"{path} {name}", inner)


def test_every_command_and_flag_is_there(site):
    program, page = typer.main.get_command(app), text(site / "reference-cli.html")
    paths = list(paths_of("pte", program))
    assert {"pte train", "pte runs compare", "pte plugins new"} <= set(paths)
    titles = [path for path in paths if re.search(rf"^{path}\W*$", page, flags=re.MULTILINE)]
    assert titles == paths
    flags = options_of(program)
    assert {"--budget", "--json", "--grade", "--no-measure"} <= flags
    assert sorted(flags - set(page.split())) == []
    # From the help of --budget, and its default.
    assert re.search(r"--budget\s+TOKENS\s+48\s+Cached tokens per layer and head, prompt included\.", page)


def dotted(model, prefix=""):
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from dotted(type(field.default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def test_every_setting_is_there_and_said_what_it_is(site):
    page = text(site / "reference-config.html").split()
    names = dict(dotted(RunConfig))
    assert {"evict.budget", "data.columns.prompt", "grpo.importance_sampling_cap"} <= set(names)
    assert sorted(set(names) - set(page)) == []
    assert [name for name, field in names.items() if not field.description] == []


def test_every_option_of_a_built_in_plugin_is_there(site):
    page = text(site / "reference-plugins.html").split()
    mine = [found.spec for found in load_registry().found if found.distribution == BUILTIN]
    assert {"sliding", "pte", "recall", "overlong", "slurm"} <= {spec.name for spec in mine}
    wanted = {spec.name for spec in mine} | {name for spec in mine for name in spec.options.model_fields}
    assert sorted(word for word in wanted if not any(word in given for given in page)) == []
