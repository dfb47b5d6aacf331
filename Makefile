# The two commands of the README are `make app` and `make test`; each does its own set-up.
#   make app ARGS="--gallery ~/Pictures"     arguments for the app
#   make app TORCH_INDEX=URL                 an extra package index, e.g. one with CPU builds of torch

VENV ?= .venv
PYTHON ?= python3
ARGS ?=
PIP = $(VENV)/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: app test lint types check system
app: $(VENV)/app.stamp
	$(VENV)/bin/python app/main.py $(ARGS)

test: $(VENV)/dev.stamp system
	$(VENV)/bin/python -m pytest

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/dev.stamp
	$(VENV)/bin/mypy

check: lint types test

# what the tests need beside Python: a browser to drive the app, the font the scenes are made of
system:
	@fc-list 2>/dev/null | grep -qi NotoColorEmoji && command -v chromium >/dev/null || { \
		$(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -y -qq --no-install-recommends fontconfig fonts-noto-color-emoji chromium; }

$(VENV)/app.stamp: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/dev.stamp: requirements.txt requirements-dev.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements-dev.txt
	touch $@ $(VENV)/app.stamp
