"""The settings of Sphinx for the book; `papers.book` copies this folder."""

project = "fedlab_lite"
html_title = "fedlab_lite"
extensions = ["myst_nb", "sphinx-mathjax-offline"]
html_theme = "sphinx_book_theme"
html_theme_options = {"home_page_in_toc": True, "show_navbar_depth": 1, "navbar_persistent": []}
html_sourcelink_suffix = ""
html_static_path, html_css_files = ["_static"], ["book.css"]
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # of outputs: verdicts, listings
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 2
# Links to files of the checkout that are no pages; pages of results whose notebooks were not asked for.
suppress_warnings = ["myst.xref_missing", "toc.not_included"]
