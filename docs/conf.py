"""The site: `scripts/docs` builds it from the pages in this folder, the code's docstrings and the command line."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

from gradtide import __version__

project, author, release = "gradtide", "the gradtide authors", __version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "site_parts"]
html_theme = "furo"
html_title = f"gradtide {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
smartquotes = False  # which makes one dash of an option's two
autodoc_member_order = "bysource"
autodoc_typehints = "description"
nitpicky = True
# Public names must be found. Of torch's no inventory is fetched (no network), and inner types have no page.
nitpick_ignore_regex = [("py:.*", r"(?!gradtide\.\w+$).*")]
autodoc_inherit_docstrings = False  # torch has its own pages
