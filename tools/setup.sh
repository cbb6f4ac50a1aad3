#!/usr/bin/env bash
# Set up a checkout: system packages, .venv from the locks, the labctl command. What is done is
# skipped, so it can be run at any time. Usage: tools/setup.sh [packages] [account] [python] [link]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=tools/packages.txt
tested='12 13' # releases of Debian
release=${LABCTL_OS_RELEASE:-/etc/os-release}
python=/usr/bin/python3 # Not the first in PATH, which may be another build without venv or headers.
venv=.venv
stamp=$venv/.labctl-setup
link=${LABCTL_LINK:-/usr/local/bin/labctl}

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 3
}

# Read os-release(5). NAMES: the column of the table that has its packages' names, 0 for none.
read_distribution() {
  local ID='' ID_LIKE='' VERSION_ID='' PRETTY_NAME=''
  # shellcheck source=/dev/null
  [[ ! -r $release ]] || . "$release"
  DISTRIBUTION=${PRETTY_NAME:-another distribution}
  IS_DEBIAN='' IS_TESTED='' NAMES=0
  case " $ID $ID_LIKE " in
    *' ubuntu '*) NAMES=2 ;;
    *' debian '*) NAMES=1 ;;
    *' fedora '* | *' rhel '*) NAMES=3 ;;
  esac
  [[ $ID != debian ]] || IS_DEBIAN=1
  [[ " $tested " != *" $VERSION_ID "* ]] || IS_TESTED=$IS_DEBIAN
}

# All packages, by their names in a column of the table.
packages_of() {
  awk -v column="$1" '!/^(#|$)/ {
    name = $column == "=" ? $1 : $column
    if (name != "-") print name
  }' "$packages"
}

is_installed() {
  if [[ $NAMES == 3 ]]; then
    rpm --quiet -q "$1" 2>/dev/null
  else
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
  fi
}

missing_packages() {
  local name
  while read -r name; do
    is_installed "$name" || printf '%s\n' "$name"
  done < <(packages_of $((NAMES ? NAMES : 1)))
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

# Say what to install by hand, where nothing is known of the distribution by both of its names.
list_packages() {
  say "packages are installed on Debian ${tested/ / and } alone, and this is $DISTRIBUTION."
  say "Install these by hand, then run 'make setup' again:"
  local apt=() dnf=()
  case $NAMES in
    0) mapfile -t apt < <(packages_of 1) && mapfile -t dnf < <(packages_of 3) ;;
    3) dnf=("$@") ;;
    *) apt=("$@") ;;
  esac
  ((!${#apt[@]})) || printf '\n    apt-get install --no-install-recommends %s\n' "${apt[*]}"
  ((!${#dnf[@]})) || printf '\n    dnf install --setopt=install_weak_deps=False %s\n' "${dnf[*]}"
  ((NAMES)) || printf '\n%s\n' "'tools/setup.sh account python link' goes on without asking for packages."
}

install_packages() {
  local missing
  read_distribution
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if [[ ! $IS_DEBIAN ]]; then
    list_packages "${missing[@]}" >&2
    exit 3
  fi
  [[ $IS_TESTED ]] || say "labctl is tested on Debian ${tested/ / and }, not on $DISTRIBUTION"
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
