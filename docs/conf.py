"""How the documentation is built: ``sphinx-build -W docs build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from sharedkernel import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "sharedkernel"
author = "The sharedkernel maintainers"
version = release = __version__

extensions = ["myst_parser", "configuration_reference"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_extensions"]

# `--option` and "8GiB" are to be copied as they are
smartquotes = False

html_theme = "furo"
html_title = "sharedkernel"
html_static_path: list[str] = []
