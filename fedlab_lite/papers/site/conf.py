"""The settings of Sphinx for the book; `papers.book` copies this folder."""

import re

project = html_title = "fedlab_lite"
author = "The fedlab_lite authors"
extensions = ["myst_nb", "sphinx-mathjax-offline", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_theme_options = {"home_page_in_toc": True, "show_navbar_depth": 1, "navbar_persistent": []}
html_sourcelink_suffix = ""
html_static_path, html_css_files = ["_static"], ["book.css"]
html_show_copyright = False
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # of outputs: verdicts, listings
nb_code_prompt_show = "Show the {type}"  # source, or outputs
nb_code_prompt_hide = "Hide the {type}"
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_dmath_double_inline = True  # $$ inside a paragraph, as Jupyter has it
myst_heading_anchors = 2
default_role = "code"  # of docstrings, in which `name` is code
add_module_names = False
autodoc_typehints_format = "short"
napoleon_use_ivar, napoleon_attr_annotations = True, False  # attributes as a list in the text of their class
python_maximum_signature_line_length = 88
toc_object_entries = False
# Links to files of the checkout that are no pages; pages of results whose notebooks were not asked for.
suppress_warnings = ["myst.xref_missing", "toc.not_included"]


def setup(app):
    """Write the types of arrays in signatures as in the source: jaxtyping turns `ArrayLike` into a long list."""
    each = r"(\w+)\[Array, ('[^']*')\] \| \1\[ndarray, \2\](?: \| (?:bool|number|int|float|complex)\b)*"

    def shorter(text):
        return text and re.sub(each, r"\1[ArrayLike, \2]", re.sub(r"~?(?:jaxtyping|jaxlib\._jax|numpy)\.", "", text))

    app.connect("autodoc-process-signature", lambda *event: tuple(map(shorter, event[-2:])))
