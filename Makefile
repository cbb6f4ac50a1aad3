# make sweep   set up what is missing, build the guest image, run a study
# make test    set up what is missing, run every check and test, guests included

STUDY ?= pinning
IMAGE ?= debian-13

bin := .venv/bin
labctl := $(bin)/labctl

.PHONY: setup image sweep example test guest-tests test-on test-peers test-kvm sweep-kvm shell-kvm \
    lint unit docs site bench calibrate lessons lock clean fuzz release faults handouts soak

setup:
	@tools/setup.sh

image: setup
	@$(labctl) image build $(IMAGE)

# `make sweep ARGS=` runs the study at full size.
sweep: ARGS ?= --quick
sweep: image
	@$(labctl) sweep $(STUDY) $(ARGS)

# Packs the run RUN into results/, with its page beside it: `make example RUN=NAME`. It stands for
# EXAMPLE: `example` is a run of `labctl sweep pinning --quick`, `example-traced` one of
# `labctl sweep tests/guest/traced.yaml --collect trace`.
EXAMPLE ?= example
example: setup
	$(labctl) run export $(RUN) --out results/$(EXAMPLE).tar.xz
	$(labctl) report results/$(EXAMPLE).tar.xz --html results/$(EXAMPLE).html

# On every CPU; more processes than that many would wait for the slowest of the tests.
unit_tests = $(bin)/pytest tests/unit tests/faults -m "not faults" --numprocesses=logical --maxprocesses=8 --dist=worksteal

FILES ?= tests/fleet tests/guest
# In two lanes (docs/developing.md); the last files are short ones, so that both end at once.
guest_tests = $(bin)/pytest $(FILES) -m "not faults" --dist=loadfile --no-loadscope-reorder \
    --tx "2*popen//python=$(CURDIR)/tools/lane.sh"

# Lint and the unit tests run beside those with guests, at the lowest priority.
test: setup
	@tools/test.sh '$(MAKE) --no-print-directory image && exec $(guest_tests)' \
	    '$(MAKE) --no-print-directory unit'

# In a root of another release of Debian, made from nothing: what may differ there. `make test` sets
# one up too, for a smaller sweep (tests/guest/test_another_release.py).
RELEASE ?= trixie
there = tests/guest/test_catalogue.py tests/guest/test_sweep.py tests/guest/test_host_trace.py \
    tests/guest/test_guest_trace.py tests/guest/test_libvirtd.py tests/guest/test_own_vm.py
test-on: setup
	@tools/on_release.sh $(RELEASE) 'make setup' \
	    'make sweep ARGS="--quick --blocks 1 --workload sysbench-cpu --collect trace"' \
	    'make unit' 'make guest-tests FILES="$(there)"'

# The domains and topologies of libvirt's own test suite, as the release's source package has them.
test-peers: setup
	@$(bin)/python -m tools.peers $(ARGS)

# The tests that need KVM, in an emulated host of it, where this one has none;
# `make test-kvm ARGS=tests/guest/test_exits_kvm.py` runs others there.
test-kvm: setup
	@$(bin)/python -m tools.kvm_host pytest $(or $(ARGS),-m kvm tests/guest)

# A sweep there, whose run comes out into results/: of its times none is worth a figure.
sweep-kvm: ARGS ?= --quick --collect exits
sweep-kvm: setup
	@$(bin)/python -m tools.kvm_host --results --limit 12h labctl sweep $(STUDY) $(ARGS)

# Each line of standard input, a command, in one boot of it.
shell-kvm: setup
	@$(bin)/python -m tools.kvm_host --results --limit 12h

# The catalogue of faults (docs/faults.md), each injected for real. It needs root.
faults: image
	$(bin)/pytest tests/faults tests/fleet -m "faults or not fleet" $(ARGS)

# An hour of trials with faults drawn at random; what labctl used meanwhile is in OUT.
soak: TRIALS ?= 1000
soak: SEED ?= 1
soak: OUT ?= /var/tmp/labctl-soak
soak: image
	LABCTL_SOAK_TRIALS=$(TRIALS) LABCTL_SOAK_SEED=$(SEED) LABCTL_SOAK_OUT=$(OUT) \
	    tools/lane.sh -m pytest tests/faults/test_soak.py

guest-tests: image
	$(guest_tests)

unit: lint
	$(unit_tests)

lint: setup
	$(bin)/ruff check .
	$(bin)/mypy --strict labctl tools
	$(bin)/lint-imports --no-cache
	shellcheck $$(grep -rlE '^#!.*[/ ](ba|da)?sh$$' .ci tools labctl debian)

# The pages that are made of the files and models that they describe.
docs: setup
	$(labctl) tuning list --markdown > docs/tunings.md
	$(bin)/python -m tools.study_keys > docs/studies.md
	$(bin)/python -m tools.workload_keys > docs/workload-keys.md
	$(bin)/python -m tools.pages
	$(bin)/python -m tools.schemas

# The pages as a website in dist/site, made by Sphinx (docs/conf.py), which only this target installs.
# A warning is an error, and a link that leads nowhere is a warning.
site: setup
	@$(bin)/python -m pip --quiet --disable-pip-version-check install --require-hashes \
	    -r requirements-site.lock
	@rm -rf dist/site dist/site-trees dist/site-page
	@$(sphinx) -b html . dist/site
	@$(sphinx) -b singlehtml . dist/site-page
	@mv dist/site-page/README.html dist/site/everything.html
	@rm -r dist/site-trees dist/site-page
	@echo "Wrote dist/site/index.html"
site: sphinx := $(bin)/python -m sphinx -n -W --keep-going -q -c docs -d dist/site-trees

# Lessons, pages and recorded runs as one archive, for a room without a network.
lessons: setup
	@$(bin)/python -m tools.lessons

# Alters inputs of every reader of what others wrote, guided by coverage; ends with 1 at a crash.
# `make fuzz SECONDS=600 SEED=2 ARGS='--target archive'`.
SECONDS ?= 3600
SEED ?= 1
fuzz: setup
	@$(bin)/python -c 'import atheris' 2>/dev/null || \
	    $(bin)/pip install --quiet --require-hashes --no-deps -r tests/fuzz/requirements.txt || \
	    echo 'atheris is not at hand: inputs are altered at random' >&2
	@$(bin)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) $(ARGS)

# Each lesson on one sheet, as PDF; needs Chromium.
handouts: setup
	@$(bin)/python -m tools.lessons --handouts dist/handouts

bench: image
	@$(bin)/python -m tools.bench $(ARGS)

# How often verdicts are right, on simulated sweeps; `make calibrate ARGS='--only power'`.
calibrate: setup
	@$(bin)/python -m tools.calibrate $(ARGS)

# Takes the newest versions that pyproject.toml and the .in files allow.
lock: setup
	rm -f requirements-build.lock requirements.lock requirements-site.lock
	$(bin)/pip-compile $(compile) -o requirements-build.lock requirements-build.in
	$(bin)/pip-compile $(compile) --extra dev --extra fleet --extra parquet \
	    -c requirements-build.lock -o requirements.lock pyproject.toml requirements.in
	$(bin)/pip-compile $(compile) -c requirements.lock -o requirements-site.lock \
	    requirements-site.in
lock: export CUSTOM_COMPILE_COMMAND = make lock
lock: compile := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options

# Everything that is published, into dist/, and each part tried in a fresh root of Debian;
# `make release ARGS=--draft` before the version is ready (docs/releasing.md).
release: setup
	@tools/release.sh $(ARGS)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find labctl tests -name __pycache__ -type d -prune -exec rm -rf {} +
