"""Sphinx settings: Markdown through MyST, the theme furo, formulas as MathML. No built page fetches anything."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1])]

import attnlab  # noqa: E402 the checkout's, found through the line above

project = "attnlab"
author = "the attnlab authors"
copyright = "2026, the attnlab authors"
release = version = attnlab.__version__

extensions = ["myst_parser", "mathml", "claims_table", "live_panel", "kit", "reference"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # annotations name what has no page, such as Array and Any
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
smartquotes = False  # a quoted word in a docstring is code
exclude_patterns = ["_build", "_ext", "papers/released_code_gap.md"]  # the last is included by papers/race

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "attnlab"
html_static_path = ["_static", "../attnlab/teach/font"]
html_css_files = ["attnlab.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
