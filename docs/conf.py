"""``python tasks.py docs``: the pages and the API reference by Sphinx; warnings are errors."""

from cml_engine import __version__

project = "cml_engine"
author = "the authors of cml_engine"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_title = "Networks inside the frame"

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_ivar = True
# what a page says of files of the repository is no page of these
suppress_warnings = ["myst.xref_missing"]
