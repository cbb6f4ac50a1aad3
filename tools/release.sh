#!/usr/bin/env bash
# Walk through the checklist of docs/releasing.md: check the version, build everything into dist/,
# and try each part in a fresh root. Usage: tools/release.sh [--draft] [RELEASE...]
#
# RELEASE: of Debian, for which a package is built (default: bookworm trixie). --draft goes on where
# the checkout is not ready for a release. $LABCTL_KEY: GnuPG key that signs the checksums.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' labctl/__init__.py)
draft=''
if [[ ${1:-} == --draft ]]; then
  draft=1
  shift
fi
(($#)) || set -- bookworm trixie

say() { printf 'release: %s\n' "$*"; }

fail() {
  printf 'release: %s\n' "$*" >&2
  exit 1
}

# Check that a command succeeds. A draft goes on where it fails.
check() {
  if "${@:2}" >/dev/null 2>&1; then
    say "yes: $1"
  elif [[ $draft ]]; then
    say "no: $1 (a draft goes on)"
  else
    fail "no: $1"
  fi
}

has_no_tag() { ! git rev-parse --quiet --verify "refs/tags/v$version"; }

# Run commands in a Debian root, on a copy of the checkout.
within() { ROOT=$1 tools/on_release.sh "${@:2}"; }

apt='DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0'

build_package() {
  within "$root/build" "$1" 'apt-get -qq update' "$apt install lintian >/dev/null" \
    "$apt build-dep . >/dev/null" \
    'dpkg-buildpackage --no-sign --build=binary >../log 2>&1 || { tail -40 ../log; exit 1; }' \
    'lintian --fail-on error ../labctl_*.changes'
  cp "$root"/build/root/labctl_*.deb dist/
}

# Each part as a user gets it: the package first, because the wheel brings a compiler along.
try_parts() {
  within "$root/try" "$1" 'apt-get -qq update' >/dev/null
  mkdir "$root/try/root/dist"
  cp dist/* "$root/try/root/dist"
  within "$root/try" "$1" \
    "$apt install ../dist/labctl_*+deb\$(cut -d. -f1 /etc/debian_version)_*.deb >/dev/null" \
    'cd / && labctl --version && labctl report example >/dev/null' \
    'test -e /usr/share/man/man1/labctl-sweep.1.gz' \
    'cd / && { labctl doctor >/tmp/doctor || [ $? = 1 ]; } && head -2 /tmp/doctor' \
    "$apt purge labctl >/dev/null && ! test -e /usr/lib/labctl" \
    "$apt install gcc libvirt-dev pkgconf python3-dev python3-venv >/dev/null" \
    'cd / && python3 -m venv /venv && /venv/bin/pip -q install /root/dist/labctl-*.whl' \
    'cd / && /venv/bin/labctl --version && /venv/bin/labctl report example >/dev/null' \
    'test -e /venv/share/man/man1/labctl.1'
}

say "version $version"
check 'the work tree has no changes' git diff --quiet HEAD
check "CHANGELOG.md has a dated section [$version]" grep -qE "^## \[$version\] - [0-9-]{10}$" CHANGELOG.md
check "the tag v$version is free" has_no_tag
check 'the versions of all files agree' "$python" -m pytest -q -p no:xdist tests/unit/test_release.py

say 'building wheel, source and bill of materials'
rm -rf dist
mkdir dist
"$python" -m build --no-isolation --outdir dist . >/dev/null # The wheel is built from the source.
"$python" -m tools.sbom >"dist/labctl-$version.cdx.json"

made=$(mktemp -d /var/tmp/labctl-release.XXXXXX)
trap 'rm -rf --one-file-system "$made"' EXIT
for release; do
  root=$made/$release
  say "building the package for $release"
  build_package "$release"
  rm -rf --one-file-system "$root/build"
  say "trying package and wheel in a fresh root of $release"
  try_parts "$release"
  rm -rf --one-file-system "$root"
done

(cd dist && sha256sum -- * >SHA256SUMS)
if [[ ${LABCTL_KEY:-} ]]; then
  gpg --local-user "$LABCTL_KEY" --armor --detach-sign dist/SHA256SUMS
fi
ls -l dist
say "next: git tag -s v$version, and publish dist/ (docs/releasing.md)"
