# The two commands of the README are `make app` and `make test`; each does its own set-up.
#   make app ARGS="--gallery ~/Pictures"     arguments for the app
#   make gpu                                 compares a GPU with the CPU (docs/results/gpu.md)
#   make app TORCH_INDEX=URL                 an extra package index, e.g. one with CPU builds of torch
#   make space ARGS="--hardware zero-gpu"    the folder of a Hugging Face Space, in build/space
#   make space-check SPACE_PYTHON=python3.12 the same, installed and started as the Hub would
#   make images PAGE=http://127.0.0.1:7860   the screenshots in docs/, of a running app over the scenes

VENV ?= .venv
PYTHON ?= python3
ARGS ?=
SPACE_PYTHON ?= python3.12
PIP = $(VENV)/bin/python -m pip install --quiet --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

SOAK_CASES ?= 10000
SOAK_SEED ?= 1

.PHONY: app test slow soak gpu lint types check system nginx space space-check images
app: $(VENV)/app.stamp
	$(VENV)/bin/python app/main.py $(ARGS)

# TESTS='-m "not soak"' adds the slow ones
test: $(VENV)/dev.stamp system
	$(VENV)/bin/python -m pytest $(TESTS)

# end-to-end tests: a user's folder, downloads, browser history, the first pack of a clone, a proxy
slow: $(VENV)/dev.stamp system nginx
	$(VENV)/bin/python -m pytest -m "slow and not soak"

# long tests, bounded in number and time: a hundred killed processes, and ten thousand random
# corruptions of packs, images and requests; another SOAK_SEED draws other cases
soak: $(VENV)/dev.stamp system
	$(VENV)/bin/python -m pytest -m soak --ignore tests/soak
	SOAK_CASES=$(SOAK_CASES) $(VENV)/bin/python -m pytest -n 0 -m "" tests/soak \
		--hypothesis-seed=$(SOAK_SEED) -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# the tests that need CUDA, then results and times compared with the CPU's; without CUDA a rehearsal
gpu: $(VENV)/dev.stamp
	@$(VENV)/bin/python -c "import torch; torch.cuda.is_available() or \
		print('There is no CUDA device: this is a rehearsal on the CPU.')"
	$(VENV)/bin/python -m pytest -n 0 -m gpu
	$(VENV)/bin/python -m benchmarks.gpu --out $(if $(wildcard /dev/nvidia0),docs/results,build)/gpu.md $(ARGS)

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

# mypy follows imports by folders, so it reads the tree as it is installed: polyview/models and so on
types: $(VENV)/dev.stamp
	rm -rf build/types && mkdir -p build/types/polyview
	ln -s $(addprefix $(CURDIR)/,$(wildcard polyview/*.py) app export models training) build/types/polyview
	ln -s $(addprefix $(CURDIR)/,tests benchmarks) build/types
	cd build/types && $(abspath $(VENV))/bin/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/build/mypy

check: lint types test slow

space: $(VENV)/app.stamp
	rm -rf build/space
	$(VENV)/bin/python -m polyview space --out build/space $(ARGS)

# also installs the packages that the Hub adds to the requirements of a Space
space-check: $(VENV)/dev.stamp space
	version=$$($(SPACE_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
		grep "^python_version: '$$version'" build/space/README.md || { \
		echo "$(SPACE_PYTHON) is Python $$version; set SPACE_PYTHON to python_version of README.md"; exit 1; }
	$(SPACE_PYTHON) -m venv --clear build/space-venv
	build/space-venv/bin/python -m pip install --quiet \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r build/space/requirements.txt \
		"gradio[oauth,mcp]==$$(sed -n 's/^sdk_version: //p' build/space/README.md)" \
		"uvicorn>=0.14.0" "websockets>=10.4" spaces
	build/space-venv/bin/python -m pip check
	$(VENV)/bin/python -m tests.export.test_space build/space build/space-venv/bin/python

# image 5 shows words 1 and 4 of the example, a kangaroo and a whale
PAGE ?= http://127.0.0.1:7860
EXAMPLE = q=a+kangaroo+and+a+whale+can+be+seen+in+the+image&method=vse_infty&image=5
SCREENSHOT = chromium-headless-shell --no-sandbox --hide-scrollbars --window-size=1280,800 \
	--virtual-time-budget=20000 --screenshot

images: $(VENV)/app.stamp system
	rm -rf build/images && mkdir -p build/images
	until answer=$$(curl -sSf "$(PAGE)/api/v1/mistakes?a=pvse&b=vse_infty") || exit 1; \
		echo "$$answer" | grep -q '"state":"ready"'; do sleep 2; done
	for words in 1 4 1,4; do \
		$(SCREENSHOT)=build/images/$$words.png "$(PAGE)/?$(EXAMPLE)&words=$$words" || exit 1; done
	$(SCREENSHOT)=build/images/mistakes.png "$(PAGE)/?screen=mistakes&a=pvse&b=vse_infty"
	curl -sSf -o build/images/original.webp "$(PAGE)/api/v1/image/5?large=true"
	for word in kangaroo whale; do \
		curl -sSf -o build/images/$$word.png \
			"$(PAGE)/api/v1/explain.png?$(EXAMPLE)&word=$$word" || exit 1; done
	cd build/images && $(abspath $(VENV))/bin/python -c "$$COMBINE"

define COMBINE
from PIL import Image
first, *more, table, original, kangaroo, whale = (
    Image.open(name).convert("RGB")
    for name in ("1.png", "4.png", "1,4.png", "mistakes.png", "original.webp", "kangaroo.png", "whale.png")
)
first.save("../../docs/search.webp", quality=80, save_all=True, append_images=more, duration=1800, loop=0)
table.save("../../docs/mistakes.webp", quality=80)
row = Image.new("RGB", (976, 320), "white")
for i, image in enumerate((original, kangaroo, whale)):
    row.paste(image.resize((320, 320)), (328 * i, 0))
row.save("../../docs/evidence.webp", quality=80)
endef
export COMBINE

# what the tests need besides Python: a browser to drive the app, the font the scenes are made of
system:
	@fc-list 2>/dev/null | grep -qi NotoColorEmoji && \
	{ command -v chromium-headless-shell || command -v chromium; } >/dev/null || { \
		$(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends \
			fontconfig fonts-noto-color-emoji chromium-headless-shell; }

# the proxy of docs/deploy.md, for the slow tests
nginx:
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null || { $(SUDO) apt-get update -qq && \
		$(SUDO) apt-get install -y -qq --no-install-recommends nginx-light; }

$(VENV)/app.stamp: requirements.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv --upgrade-deps $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/dev.stamp: requirements.txt requirements-dev.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv --upgrade-deps $(VENV)
	$(PIP) -r requirements-dev.txt
	touch $@ $(VENV)/app.stamp
