# SPDX-License-Identifier: MIT
# The few commands of every day; CMake does the work (CMakePresets.json).
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help configure build run test test-slow sanitize clean

# Commands that scripts/setup had to install go last, so that the machine's own win.
export PATH := $(PATH):$(CURDIR)/.venv/bin
JOBS := $(shell getconf _NPROCESSORS_ONLN)
PYTHON := $(or $(wildcard $(CURDIR)/.venv/bin/python),$(shell python3 -c 'import sys; print(sys.executable)'))

help:
	@echo 'make build      build/bin/tegula, build/lib/libtegula.so, build/python/tegula'
	@echo 'make run        builds, then shows what it can do on the best device here'
	@echo 'make test       all that can be tested on this machine: about 16 minutes on two cores, 33 the first time'
	@echo 'make test-slow  the same without shortcuts: hours'
	@echo 'make sanitize   all cases with shared memory scrubbed, a few under compute-sanitizer; wants a GPU'
	@echo 'make clean      removes what was built; .venv stays'

configure:
	@scripts/setup build
	@cmake --preset release -DPython_EXECUTABLE=$(PYTHON) --log-level=WARNING

build: configure
	@cmake --build build --parallel $(JOBS) --target tegula_products

run: configure
	@cmake --build build --parallel $(JOBS) --target tegula_tool tegula
	@build/bin/tegula demo
	build/bin/tegula bench --quick transpose num_rows=64,4032 num_cols=7168 dtype=e4m3,bf16,f32

test:
	@python3 tests/run

test-slow:
	@python3 tests/run --slow

sanitize: configure
	@cmake --build build --parallel $(JOBS) --target quick_set tegula_tool
	@tests/sanitize

clean:
	rm -rf build build-debug build-asan build-tsan build-msan build-fuzz dist
