PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
COMPAT := .venv-compat

# Python keeps what it compiles, also where somebody told it not to: tests start a hundred processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test docs compat lint format clean

demo: $(INSTALLED)
	$(BIN)/prefixprop train --config recipes/demo.yaml --run-dir runs/demo --overwrite
	$(BIN)/prefixprop report runs/demo --output runs/demo-report

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# The site, in site/; `python -m http.server --directory site` shows it, and its pages open from the disk too.
docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The core with the oldest transformers and peft that pyproject.toml allows.
compat: $(COMPAT)/.installed
	$(COMPAT)/bin/python -m pytest -n 2 --dist loadfile tests/test_golden.py tests/tuners tests/backbones \
		tests/attention tests/models tests/train/test_resume.py --ignore tests/attention/triton

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything else needs the environment: made once, and again when its two sources change. Nothing is compiled here: most
# of it is never imported, and what is imported is compiled then, once.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[report]"
	touch $@

# With what tests need besides.
$(TOOLS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED) $@

# All else as pinned, but for what transformers itself asks for in versions that fit it.
$(COMPAT)/.installed: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv $(COMPAT)
	grep -vE '^(transformers|peft|tokenizers|huggingface_hub)==' constraints.txt > $(COMPAT)/constraints.txt
	$(COMPAT)/bin/pip install --quiet --no-compile --constraint $(COMPAT)/constraints.txt --constraint constraints-oldest.txt \
		--editable . hypothesis pytest pytest-xdist "triton; sys_platform == 'linux'"
	touch $@

clean:
	rm -rf $(VENV) $(COMPAT) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
