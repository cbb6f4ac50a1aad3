#!/usr/bin/env bash
# Set up a checkout: system packages, .venv from the locks, the labctl command. What is done is
# skipped, so it can be run at any time. Usage: tools/setup.sh [packages] [account] [python] [link]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=tools/apt-packages.txt
python=/usr/bin/python3 # Not the first in PATH, which may be another build without venv or headers.
venv=.venv
stamp=$venv/.labctl-setup
link=${LABCTL_LINK:-/usr/local/bin/labctl}

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 3
}

missing_packages() {
  local name status
  while read -r name; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) || true
    [[ $status == installed ]] || printf '%s\n' "$name"
  done < <(grep -Ev '^(#|$)' "$packages")
}

is_root() { [[ $(id -u) == 0 ]]; }

as_root() {
  if is_root; then
    "$@"
  else
    sudo "$@"
  fi
}

apt() {
  # No questions, and no recommended packages: no daemon comes along.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "$@"
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null ||
    fail "apt-get is missing: this is made for Debian 12. Install by hand: ${missing[*]}"
  is_root || command -v sudo >/dev/null ||
    fail "these packages are missing: ${missing[*]}. Run 'make setup' once as root."
  say "installing ${missing[*]}"
  # It fails with package lists that are missing or outdated: only then are they fetched.
  if apt install "${missing[@]}" >/dev/null 2>&1; then
    return 0
  fi
  if ! apt update || ! apt install "${missing[@]}" >/dev/null; then
    fail "apt-get could not install ${missing[*]}. Mend what it says above, then try again."
  fi
}

# QEMU runs as this account, and libvirt's QEMU driver does not start for root without it, whatever
# user its qemu.conf names. libvirt-daemon-system would make it, and start a daemon. 64055 is Debian's number for it.
make_account() {
  local name=libvirt-qemu number=64055
  if getent passwd "$name" >/dev/null && getent group "$name" >/dev/null; then
    return 0
  fi
  is_root || command -v sudo >/dev/null ||
    fail "the account $name is missing. Run 'make setup' once as root."
  say "making the account $name"
  as_root groupadd --system --force kvm
  getent group "$name" >/dev/null ||
    as_root groupadd --system -K SYS_GID_MAX=$number --gid $number "$name"
  if getent passwd "$name" >/dev/null; then
    as_root usermod --append --groups "$name" "$name"
  else
    as_root useradd --system -K SYS_UID_MAX=$number --uid $number --gid kvm --groups "$name" \
      --no-create-home --home-dir /var/lib/libvirt --shell /usr/sbin/nologin \
      --comment 'Libvirt Qemu' "$name"
  fi
}

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
    packages) install_packages ;;
    account) make_account ;;
    python)
      install_python
      compile_python
      ;;
    link) link_command ;;
    *) fail "no step '$step': packages, account, python and link are" ;;
  esac
done
