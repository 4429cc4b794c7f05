"""The five papers: what each notebook runs and what was published, verdicts, result files, pages and the course."""

from fedlab_lite.papers.notebooks import listing
from fedlab_lite.papers.presets import Item, item, items, preset_table, published, settings
from fedlab_lite.papers.results import match, save_figure
