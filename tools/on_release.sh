#!/usr/bin/env bash
# Run commands in a Debian root of another release, made from nothing, on a copy of this checkout:
# its last commit and what was changed since (a new file once 'git add' knows it). Kernel, devices
# and network are this machine's.
# Usage: tools/on_release.sh RELEASE COMMAND..., each for sh -c in the copy. ROOT=FOLDER keeps the
# root there, and takes one that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  printf 'on_release: %s\n' "$*" >&2
  exit 3
}

release=$1
shift
[[ $(id -u) == 0 ]] || fail "run it as root: it makes mounts and installs packages"
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: run 'make setup'"

root=${ROOT:-$(mktemp -d "/var/tmp/labctl-$release.XXXXXX")}
mkdir -p "$root"
root=$(cd "$root" && pwd)
# What is mounted below it ends with the commands' own mount namespace.
trap '[[ ${ROOT:-} ]] || rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ ! -e $root/etc/debian_version ]]; then
  # apt's options that decide whether packages can be fetched here at all.
  options=()
  while read -r option; do options+=("--aptopt=$option"); done < <(apt-config dump | grep -E \
    '^Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv[46]|(https?|ftp)::(Proxy.*|Timeout)) "[^"]')
  printf 'on_release: making a root of %s\n' "$release"
  mmdebstrap --quiet --variant=apt --include=ca-certificates,git,make,mount "${options[@]}" \
    "$release" "$root"
fi
# How this machine reaches its package servers.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [[ ! -e $file ]] || install -D -m 644 "$file" "$root$file"
done

copy=$root/root/labctl
[[ -d $copy ]] || git clone --quiet --no-local --no-checkout . "$copy"
git -C "$copy" fetch --quiet "$PWD" HEAD
git -C "$copy" checkout --quiet --force --detach FETCH_HEAD
git -C "$copy" clean --quiet --force -d
git diff --binary HEAD | git -C "$copy" apply --allow-empty

# labctl changes how mounts spread, which a root that is merely a folder of another one can't do:
# so it becomes the root of a mount namespace.
# shellcheck disable=SC2016
enter='
set -e
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p old
pivot_root . old
umount -l old
rmdir old
cd /root/labctl
shift
for command; do
  printf "on_release: %s\n" "$command"
  sh -c "$command"
done
'
env -u PIP_FIND_LINKS -u PYENV_ROOT HOME=/root LC_ALL=C.UTF-8 \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  unshare --mount sh -c "$enter" sh "$root" "$@"
