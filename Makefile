# Everything runs in .venv, which each target sets up when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo serve test explore soak overload fuzz sbom audit check lint types bench bench-kernels proto wheel clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ -/'

# LMCache's own list of dependencies would move ours; without it, what its adapters need fits beside them.
LMCACHE := lmcache==0.5.6
LMCACHE_NEEDS := tests/sessions/cache/lmcache-requirements.txt

$(STAMP): pyproject.toml constraints.txt $(LMCACHE_NEEDS)
	@echo "setting up $(VENV): the first time this fetches PyTorch and others, which takes some minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-warn-conflicts -c constraints.txt -e '.[server,bench,dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(LMCACHE) \
		&& $(BIN)/python -m pip install --quiet --no-warn-conflicts -c constraints.txt -r $(LMCACHE_NEEDS) \
		|| echo "LMCache cannot be installed here: the tests of the shared tier are skipped"
	touch $(STAMP)

setup: $(STAMP) ## make the environment in .venv

demo: $(STAMP) ## start the server on the embedded model and run a real agent session
	$(BIN)/python -m sessile.bench_agent.demo

serve: $(STAMP) ## start the server on the embedded model
	$(BIN)/sessile serve

test: $(STAMP) ## run all tests, two files at a time, the slow ones first
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TEST_FLAGS)

explore: $(STAMP) ## run the property tests on examples that nobody has seen yet
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=explore --durations=0 --durations-min=60 $(EXPLORE_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/pyright

check: lint types test ## ruff, mypy, pyright and the tests

soak: $(STAMP) ## wear a server for 30 minutes with 200 sessions, and look for what is left behind
	PYTHONPATH=.import-root:tests/fakes $(BIN)/python tests/soak/soak.py $(SOAK_FLAGS)

overload: $(STAMP) ## send a server four times the turns that it can do, for 2 minutes
	PYTHONPATH=.import-root:tests/fakes $(BIN)/python tests/soak/overload.py $(OVERLOAD_FLAGS)

SUPPLY := $(VENV)/.supply

$(SUPPLY): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[supply]'
	touch $(SUPPLY)

fuzz: $(SUPPLY) ## feed bad inputs to every parser, a minute each; FUZZ_FLAGS="--seconds 300 gguf" for more of one
	PYTHONPATH=.import-root $(BIN)/python tests/fuzz/fuzz.py $(FUZZ_FLAGS)

sbom: $(SUPPLY) ## the bill of materials of this environment, build/sbom.json (CycloneDX)
	mkdir -p build
	$(BIN)/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --no-validate --output-reproducible --of JSON -o build/sbom.json

audit: $(SUPPLY) ## known vulnerabilities of what is installed, or why that cannot be told here
	$(BIN)/python .ci/audit

bench: $(STAMP) ## measure the server as agents use it, at most 10 minutes; results in docs/benchmarks
	$(BIN)/bench-agent report --out docs/benchmarks $(BENCH_FLAGS)

bench-kernels: $(STAMP) ## measure the kernels against this machine's limits
	$(BIN)/python -m sessile.kernels.bench

proto: $(STAMP) ## generate the stubs of server/proto/session.proto
	cd .import-root && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. sessile/server/proto/session.proto
	sed -i "s/^from sessile.server.proto import/from . import/" server/proto/session_pb2_grpc.pyi # one module, one name, for type checkers
	PYTHONPATH=.import-root $(BIN)/python tests/fakes/proto_surface.py tests/server/proto/session.golden # what is new is kept from now on

wheel: $(STAMP)
	$(BIN)/python -m build

clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
