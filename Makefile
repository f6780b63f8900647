# The two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Installed before Baton. On Linux the build of it in the usual index is made for CUDA and brings CUDA's libraries along, a
# large download; a machine that has PyTorch's CPU builds in an index of its own can name it: make TORCH='torch==2.13.0
# --index-url …'.
# A GPU machine that has its own torch, 2.11 or newer, keeps it with: make TORCH= VENV_FLAGS=--system-site-packages.
TORCH  ?= torch==2.13.0
# For `python -m venv`, when .venv is made.
VENV_FLAGS ?=

.PHONY: demo test test-compose docker-engine browser ui model lint protos protos-check up bench-cpu bench-engine faults bench-check clean
.DEFAULT_GOAL := demo

$(BIN)/.installed: pyproject.toml setup.py kernels/baton_kernels/cpu_layers.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(if $(strip $(TORCH)),$(PIP) $(TORCH))
	$(PIP) --editable '.[worker,local]'
	touch $@

$(BIN)/.installed-test: $(BIN)/.installed
	$(PIP) --editable '.[worker,local,test,lint]'
	touch $@

# Stubs come from an older grpcio-tools, so that every supported grpcio and protobuf can load them; see docs/adr/0003.
.venv-protos/.installed:
	test -x .venv-protos/bin/python || $(PYTHON) -m venv .venv-protos
	.venv-protos/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.80.0
	touch $@

demo: $(BIN)/.installed
	$(BIN)/baton demo

up: $(BIN)/.installed
	$(BIN)/baton up

# In this order, but for `make -j`; pytest last.
test: $(BIN)/.installed-test model lint protos-check docker-engine browser ui
	$(BIN)/python -m pytest

# The containers alone.
test-compose: $(BIN)/.installed-test model docker-engine
	$(BIN)/python -m pytest tests/compose

# For tests/compose, from Debian's packages, where root may install them; those tests say what is missing. With
# BATON_NO_DOCKER=1 they are left out.
docker-engine:
	test -n "$$BATON_NO_DOCKER" || test "$$(id -u)" != 0 \
		|| which dockerd docker-compose debootstrap ip iptables > /dev/null || { apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			docker.io docker-compose debootstrap iproute2 iptables > /dev/null; }

# For tests that look at pages, where root may install it; those tests say when it is missing.
browser:
	which chromium chromium-browser google-chrome > /dev/null || test "$$(id -u)" != 0 || { apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; }

# The tracing page of `baton up --ui`, in an environment of its own: it has more dependencies than all of Baton.
ui: .venv-ui/.installed

.venv-ui/.installed:
	test -x .venv-ui/bin/python || $(PYTHON) -m venv .venv-ui
	.venv-ui/bin/python -m pip install --quiet --disable-pip-version-check arize-phoenix==20.26.1
	touch $@

model: $(BIN)/.installed
	$(BIN)/baton fetch smollm2-135m

lint: $(BIN)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/size_check.py

protos: .venv-protos/.installed
	.venv-protos/bin/python -m grpc_tools.protoc -Ibaton/rpc=protos --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

protos-check: .venv-protos/.installed
	rm -rf build/protos && mkdir -p build/protos
	.venv-protos/bin/python -m grpc_tools.protoc -Ibaton/rpc=protos --python_out=build/protos --pyi_out=build/protos \
		--grpc_python_out=build/protos protos/*.proto
	for f in build/protos/baton/rpc/*; do cmp $$f baton/rpc/$$(basename $$f) || { echo "stubs are stale: run make protos"; exit 1; }; done

bench-cpu: $(BIN)/.installed-test
	$(BIN)/python benchmarks/cpu/speed.py

bench-engine: $(BIN)/.installed model
	$(BIN)/python benchmarks/engine/scheduling.py
	$(BIN)/python benchmarks/engine/prefix_ttft.py

faults: $(BIN)/.installed-test
	$(BIN)/python benchmarks/reliability/faults.py

bench-check: $(BIN)/.installed
	$(BIN)/python benchmarks/check.py

clean:
	rm -rf build .run $(BIN)/.installed $(BIN)/.installed-test
