# make book    build the book: _build/html/index.html
# make test    run every test            make lint    look at the code without running it
# make bench   measure against plain versions: benchmarks/results.csv (make bench ONLY="forward pass"; QUICK=1: small)
# make clean   remove the built pages; results stay in build/ (they may have taken hours)
# Another Python: make book PYTHON=/path/to/python3.12 (3.11 or newer; read when .venv is made)
PYTHON ?= python3
READY := .venv/.ready
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; \
	$(PYTHON) is %d.%d. Say make PYTHON=/path/to/python3.11, or any newer one." % sys.version_info[:2])'

.PHONY: book test lint bench clean setup

book: setup
	.venv/bin/inclad book

test: setup
	.venv/bin/python -m pytest

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

bench: setup
	.venv/bin/python -m benchmarks $(if $(ONLY),--only "$(ONLY)") $(if $(QUICK),--quick)

clean:
	rm -rf _build book/runs .pytest_cache .ruff_cache
	find inclad tests tools benchmarks -name __pycache__ -type d -exec rm -rf {} +

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	@test -x .venv/bin/python || { $(CHECK_PYTHON) && $(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }; }
	.venv/bin/python -m pip install --quiet -r requirements.lock
	.venv/bin/python -m pip install --quiet --no-deps -e .
	@touch $@
