#!/usr/bin/env bash
# Set up a checkout: system packages, .venv from the locks, the labctl command. What is done is
# skipped, so it can be run at any time. Usage: tools/setup.sh [packages] [account] [python] [link]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=/usr/bin/python3 # Not the first in PATH, which may be another build without venv or headers.
venv=.venv
stamp=$venv/.labctl-setup
link=${LABCTL_LINK:-/usr/local/bin/labctl}

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 3
}

# Packages and the account are the same as those of `labctl setup`, and tests need more packages.
host() {
  LABCTL_SETUP='make setup' LABCTL_USES='run build test' \
    LABCTL_WITHOUT='tools/setup.sh account python link' labctl/host/install.sh "$1"
}

is_root() { [[ $(id -u) == 0 ]]; }

# What the environment was made from, and where: its scripts hold their own path. What
# pyproject.toml says of the tools, at its end, changes nothing in it.
wanted() {
  pwd
  "$python" -VV
  sha256sum requirements-build.lock requirements.lock
  sed '/^\[tool\./,$d' pyproject.toml
}

install_python() {
  if [[ -f $stamp ]] && diff -q "$stamp" <(wanted) >/dev/null; then
    return 0
  fi
  say "making $venv from requirements.lock"
  "$python" -m venv --clear "$venv"
  local pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check install)
  "${pip[@]}" --require-hashes -r requirements-build.lock
  # Without isolation a build uses the locked tools; with it pip would fetch others.
  "${pip[@]}" --require-hashes --no-build-isolation -r requirements.lock
  "${pip[@]}" --no-deps --no-build-isolation --no-index --editable .
  wanted >"$stamp"
}

# Where PYTHONDONTWRITEBYTECODE is set, or another user runs labctl, each command would compile its
# modules anew: a quarter of the time of a short one.
compile_python() {
  "$venv/bin/python" -m compileall -qq labctl || say "labctl's modules could not be compiled"
}

# For root, labctl becomes a command, unless something else has its name.
link_command() {
  if ! is_root || [[ -e $link ]]; then
    return 0
  fi
  mkdir -p "$(dirname "$link")"
  ln -sfn "$PWD/$venv/bin/labctl" "$link"
  say "linked $link"
}

(($#)) || set -- packages account python link
for step in "$@"; do
  case $step in
    packages | account) host "$step" ;;
    python)
      install_python
      compile_python
      ;;
    link) link_command ;;
    *) fail "no step '$step': packages, account, python and link are" ;;
  esac
done
