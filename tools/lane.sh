#!/usr/bin/env bash
# Python with a host's lock of its own: what one worker of the tests with guests runs is alone with
# its labctl, as on a host of its own. Usage: tools/lane.sh PYTHON-ARGUMENT...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck disable=SC2016
exec unshare --mount --propagation private sh -c \
  'mkdir -p /run/labctl && mount -t tmpfs -o mode=700 lane /run/labctl && exec .venv/bin/python "$@"' \
  sh "$@"
