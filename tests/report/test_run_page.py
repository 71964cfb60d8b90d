"""The report of one run: what it shows, and that it needs and trusts nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from run_folders import SAMPLE, SCRIPT, run_folder

from pte_cli.errors import PteError
from pte_cli.report import run_page
from pte_cli.report.plots import can_draw
from pte_cli.report.run_curves import run_pictures
from pte_cli.report.run_page import SHADES, held, sample, tip, write_run_report
from pte_cli.report.runs import view
from pte_cli.report.series import SMOOTHING

METRICS = [{"step": i, "phase": "sft", "loss": 3 - i / 50, "evictions": 4.0} for i in range(1, 2 * SMOOTHING + 1)]
METRICS += [
    {"step": 51, "phase": "grpo", "loss": 0.5, "reward": 0.25, "gap/max": 1e-6, "gap/mean": 1e-8, "cache_bytes": 2**21},
    {"step": 52, "phase": "grpo", "loss": float("nan"), "reward": 0.75, "gap/max": 2e-6, "gap/mean": 2e-8},
]


class Tags(HTMLParser):
    """The tags of a page, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loaded = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def test_what_was_held_when_a_token_was_written():
    left = [(17, 0.25), (21, 0.5)]
    # Token number 17 is written after the 17th has been fed; the eviction at 17 comes before the next one is.
    assert [held(left, token) for token in (0, 17, 18, 21, 22)] == [1, 1, 0.75, 0.75, 0.25]


def test_a_completion_is_shaded_as_the_cache_was():
    shown = sample(SAMPLE)
    assert [token.shade for token in shown.prompt] == [0, 0]
    assert [(token.text, token.shade) for token in shown.thinking] == [
        (" a", SHADES),
        (" b", SHADES // 2),
        (" c", SHADES // 2),
        (SCRIPT, 0),
    ]
    assert [token.text for token in shown.answer] == [" =", " 7"]
    assert shown.title == "problem 3: wrong"
    assert "1 of 4 thinking tokens had left the cache and 2 more had left some layers or heads" in shown.note
    assert "Evictions after 2, 3, 4 thinking tokens" in shown.note


@pytest.mark.parametrize(
    ("index", "left", "text"),
    [
        (-1, [], "prompt: never left"),
        (0, [[17, 1.0]], "thinking token 1: left after 17 thinking tokens"),
        (1, [[3, 0.5], [4, 0.5]], "token 2: left after 3 (50 %), 4 (50 %) thinking tokens, share of layers and heads"),
    ],
)
def test_when_a_token_left_in_words(index, left, text):
    assert tip(index, left).endswith(text)


def test_curves_of_a_run(tmp_path):
    shown = {picture.name: picture for picture in run_pictures(view(run_folder(tmp_path / "run", metrics=METRICS)))}
    assert list(shown) == ["loss-sft", "loss-grpo", "reward", "gap", "evictions", "memory"]
    each, means = shown["loss-sft"].lines
    assert (each.faint, len(each.points), means.arm) == (True, 50, "mean of 25 steps")
    # The mean of 3 - i/50 over steps 1 to 25 is 3 - 13/50.
    assert [(p.x, p.mean) for p in means.points] == [(25, pytest.approx(2.74)), (50, pytest.approx(2.24))]
    assert [(p.x, p.mean) for p in shown["loss-grpo"].lines[0].points] == [(51, 0.5)]
    assert [line.arm for line in shown["gap"].lines] == ["largest", "mean"]
    assert shown["gap"].log
    memory = shown["memory"]
    assert memory.scale * memory.lines[0].points[0].mean == 2


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    run = view(
        run_folder(folder / "run", {"evict": {"policy": SCRIPT}}, [1, 0, 1, 1], metrics=METRICS, samples=[SAMPLE])
    )
    file = folder / "pages" / "report.html"
    assert write_run_report(run, file) == can_draw()
    return file.read_text()


def test_the_page_needs_nothing_else(html):
    page = Tags(html)
    assert all(value.startswith("data:image/png;base64,") for value in page.loaded)
    assert len(page.loaded) == (6 if can_draw() else 0)
    assert "http" not in re.sub(r"base64,[^\"]*", "", html)
    assert not page.tags & {"script", "link", "iframe", "object"}


def test_what_a_completion_says_is_only_text(html):
    assert "<script" not in html.lower()
    # In the completion, and as the name of a policy in the heading and among the settings.
    assert html.count("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;") == 4
    assert "> &amp;</span>" in html


def test_the_page_says_what_was_measured(html):
    text = re.sub(r"<[^>]+>", " ", html)
    for words in ("75.0 % (0.0 to 100.0)", "12.5 %", "3,145,728", "finished after 52 of 400 steps", "2.13.0"):
        assert words in text, words
    assert "not installed" in text  # peft, as env.json has it
    assert html.count(f'class="g{SHADES}" title=') == 1


def test_without_matplotlib_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(run_page, "can_draw", lambda: False)
    run = view(run_folder(tmp_path / "run", metrics=METRICS))
    assert not write_run_report(run, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "pip install &#39;pte-cli[plots]&#39;" in text
    assert "<img" not in text


def test_a_folder_that_can_not_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(run_page, "can_draw", lambda: False)
    (tmp_path / "taken").write_text("")
    with pytest.raises(PteError, match="taken/r.html: can't be written"):
        write_run_report(view(run_folder(tmp_path / "run")), tmp_path / "taken" / "r.html")
