SHELL := bash
PYTHON ?= python3
# The active environment (conda's, or another virtual one) is used if it has all that is needed; else .venv is made.
NEEDED := beartype distributed dp_accounting jax flax optax jupyterlab nbmake optuna papermill pytest pytest_timeout ruff \
  seaborn shtab sphinx
FOUND := $(shell python -c "import importlib.util as u; print(all(map(u.find_spec, '$(NEEDED)'.split())))" 2>/dev/null)
ACTIVE := $(if $(filter True,$(FOUND)),$(or $(VIRTUAL_ENV),$(CONDA_PREFIX)))
BIN := $(or $(ACTIVE),.venv)/bin
READY := $(if $(ACTIVE),,.venv/ready)
NOTEBOOKS := $(if $(ACTIVE),,.venv/notebooks)
FEDLAB := $(BIN)/python -m fedlab_lite
IMPORTED := fedlab_lite.plots, fedlab_lite.papers, ipykernel.kernelapp, jupyter_client.asynchronous, matplotlib.pyplot, \
  pandas, papermill.execute, seaborn
EACH_CORE := -n auto --dist worksteal
# The package's tests wait for kills, locks and deadlines: one process more than there are cores fills these times.
ONE_MORE = -n $(shell $(BIN)/python -c "import psutil; print(1 + (psutil.cpu_count(logical=False) or 1))") --dist worksteal
# The package's tests mostly compile. These flags halve the time of that; notebooks are compiled without them.
QUICKLY = XLA_FLAGS="$(shell $(BIN)/python tests/quickly.py)"

.PHONY: reproduce test check lint bench attack browser figures book clean

reproduce: $(NOTEBOOKS)  ## the headline notebook of each paper on the embedded data, then one line per claim
	@$(FEDLAB) run --headline
	@$(FEDLAB) report --drafts

test: $(READY) lint  ## the package's tests, then every notebook at `quick`
	$(QUICKLY) $(BIN)/python -m pytest $(ONE_MORE)
	FEDLAB_FIGURES=$$(mktemp -d) $(BIN)/python -m pytest $(EACH_CORE) --nbmake --nbmake-timeout=600 --durations=0 notebooks

check: lint  ## for the inner loop: the linters and the fast tests
	$(QUICKLY) $(BIN)/python -m pytest $(ONE_MORE) -m "not slow" tests

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell fedlab_lite tests .github README.md CONTRIBUTING.md CHANGELOG.md CITATION.cff
	$(BIN)/python tests/words.py

bench: $(READY)  ## speed: ours, the limits and, where the extra `bench` is installed, the peers, as ratios
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-quiet --benchmark-storage=build/benchmarks $(BENCH)

attack: $(READY)  ## hostile text, odd data, crafted files, kills, bad input: a table of the outcomes, in a quarter of an hour
	$(BIN)/python tests/attack.py

browser: $(READY)  ## Run All on the notebooks of two papers in JupyterLab in Chromium; needs the extra `browser`
	$(BIN)/python -m pytest -rs tests/browser/run_all.py $(BROWSER)

figures: $(READY)  ## every committed figure again from the runs behind it, without training
	$(FEDLAB) run --committed --stored --commit --jobs 2
	$(FEDLAB) report --write

book: $(READY)  ## the notebooks as they were last rendered, as a site: build/book/html/index.html
	$(FEDLAB) book

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis

# pip, with the number of packages in place of its lines; what is used is compiled, pip would compile all there is
INSTALL = set -o pipefail; .venv/bin/python -m pip install --disable-pip-version-check --no-compile --progress-bar off -e
COUNTED = awk '/^(Collecting|Processing)/ { if (++n % 20 == 0) print "  " n " packages found" } \
  /^Installing collected/ { print "  " n " packages are installed" } { fflush() }'

.venv/notebooks: pyproject.toml
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "Installing what the notebooks need into .venv: about 140 packages, 1.2 GB, one to two minutes; only once"
	@$(INSTALL) ".[notebooks]" | $(COUNTED)
	@PYTHONDONTWRITEBYTECODE= .venv/bin/python -c "import $(IMPORTED)"
	@touch $@

.venv/ready: .venv/notebooks
	@echo "Installing what the tests and the book need into .venv"
	@$(INSTALL) ".[all]" | $(COUNTED)
	@touch $@
