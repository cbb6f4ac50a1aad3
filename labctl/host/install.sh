#!/usr/bin/env bash
# Install the system packages of packages.txt, and make the account of QEMU. Present ones are
# skipped, so it can be run at any time. Usage: install.sh [--list] [packages] [account]
#
# $LABCTL_SETUP: the command that a message names. $LABCTL_USES: uses of packages (packages.txt).
set -euo pipefail

packages=$(dirname "${BASH_SOURCE[0]}")/packages.txt
tested='12 13' # releases of Debian
release=${LABCTL_OS_RELEASE:-/etc/os-release}
command=${LABCTL_SETUP:-labctl setup}
uses=${LABCTL_USES:-run}

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

# Packages of the wanted uses, by their names in a column of the table.
packages_of() {
  awk -v column="$1" -v uses=" $uses " '!/^(#|$)/ && index(uses, " " $4 " ") {
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
  say "Install these by hand, then run '$command' again:"
  local apt=() dnf=()
  case $NAMES in
    0) mapfile -t apt < <(packages_of 1) && mapfile -t dnf < <(packages_of 3) ;;
    3) dnf=("$@") ;;
    *) apt=("$@") ;;
  esac
  ((!${#apt[@]})) || printf '\n    apt-get install --no-install-recommends %s\n' "${apt[*]}"
  ((!${#dnf[@]})) || printf '\n    dnf install --setopt=install_weak_deps=False %s\n' "${dnf[*]}"
  ((NAMES)) || [[ -z ${LABCTL_WITHOUT:-} ]] ||
    printf '\n%s\n' "'$LABCTL_WITHOUT' goes on without asking for packages."
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
    fail "these packages are missing: ${missing[*]}. Run '$command' once as root."
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
    fail "the account $name is missing. Run '$command' once as root."
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

# Say what the other steps would do.
list_missing() {
  local missing
  read_distribution
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || say "no package is missing"
  ((!${#missing[@]})) || say "these packages are missing: ${missing[*]}"
}

(($#)) || set -- packages account
for step in "$@"; do
  case $step in
    --list)
      list_missing
      exit
      ;;
    packages) install_packages ;;
    account) make_account ;;
    *) fail "no step '$step': packages and account are" ;;
  esac
done
