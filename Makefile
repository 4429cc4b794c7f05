PYTHON ?= python3
BIN := .venv/bin
IMPORTED := fedlab_lite.plots, fedlab_lite.papers, ipykernel.kernelapp, jupyter_client.asynchronous, matplotlib.pyplot, \
  pandas, papermill.execute, pytest, seaborn
EACH_CORE := -n auto --dist worksteal
# The package's tests mostly compile. These flags halve the time of that; notebooks are compiled without them.
# Only JAX 0.10 has the last one, and an unknown flag ends a process.
QUICKLY = XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
  $(if $(wildcard .venv/lib/*/site-packages/jaxlib-0.10.*),--xla_cpu_use_fusion_emitters=false)"

.PHONY: reproduce test check lint bench attack figures book clean

reproduce: .venv/ready  ## the headline notebook of each paper on the embedded data, then one line per claim
	$(BIN)/fedlab run --headline
	$(BIN)/fedlab report --drafts

test: .venv/ready lint  ## the package's tests, then every notebook at `quick`
	$(QUICKLY) $(BIN)/python -m pytest $(EACH_CORE)
	FEDLAB_FIGURES=$$(mktemp -d) $(BIN)/python -m pytest $(EACH_CORE) --nbmake --nbmake-timeout=600 --durations=0 notebooks

check: lint  ## for the inner loop: the linters and the fast tests
	$(QUICKLY) $(BIN)/python -m pytest $(EACH_CORE) -m "not slow" tests

lint: .venv/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell fedlab_lite tests .github README.md CONTRIBUTING.md CHANGELOG.md CITATION.cff
	$(BIN)/python tests/words.py

bench: .venv/ready  ## speed: ours, the limits and, where the extra `bench` is installed, the peers, as ratios
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-quiet --benchmark-storage=build/benchmarks $(BENCH)

attack: .venv/ready  ## kills, damaged files, full disks, two writers, bad input: a table of the outcomes, in ten minutes
	$(BIN)/python tests/attack.py

figures: .venv/ready  ## every committed figure again from the runs behind it, without training
	$(BIN)/fedlab run --committed --stored --commit --jobs 2
	$(BIN)/fedlab report --write

book: .venv/ready  ## the notebooks as they were last rendered, as a site: build/book/html/index.html
	$(BIN)/fedlab book

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[all]"
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -c "import $(IMPORTED)"  # compiles what is used; pip would compile all there is
	touch $@
