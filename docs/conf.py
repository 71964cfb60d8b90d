"""Sphinx's settings: `pip install -e ".[docs]" && sphinx-build docs docs/_build`."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "pte"
version = release = installed("pte-cli")
html_title = f"{project} {release}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser", "reference"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
