#!/usr/bin/env bash
# Run the tests with real guests, and beside them the unit tests at the lowest priority. What is
# printed is the unit tests' output and then the guests', which ends with pytest's closing line.
# Usage: tools/test.sh COMMAND-OF-GUEST-TESTS COMMAND-OF-UNIT-TESTS, each for sh -c
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp)
guests='' units=''

# Unit tests make and remove small files by the ten thousand, which on an ext4 without a journal
# makes every new file slow for minutes: in memory, where there is room (4 GiB).
memory=''
free_kib=$(df --output=avail /dev/shm 2>/dev/null | tail -1) || free_kib=0
if [ "$(stat --file-system --format=%T /dev/shm 2>/dev/null)" = tmpfs ] &&
  [ "$free_kib" -gt $((4 << 20)) ] && [ -w /dev/shm ]; then
  memory=$(mktemp -d /dev/shm/labctl-unit.XXXXXX)
  chmod 711 "$memory" # as /tmp lets others pass
fi

# Neither is in the terminal's foreground, so that an interrupt reaches them from here alone.
# shellcheck disable=SC2317
end() {
  trap '' INT TERM
  for pid in $guests $units; do kill -INT -- "-$pid" 2>/dev/null || true; done
  wait
  rm -rf "$log" ${memory:+"$memory"}
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

setsid sh -c "$1" >"$log" 2>&1 &
guests=$!
# A session's processes are one group to the scheduler, whose own niceness weighs it against the
# others (sched(7), "The autogroup feature"): QEMU and the workloads are in sessions of their own.
# shellcheck disable=SC2016
TMPDIR=${memory:-${TMPDIR:-/tmp}} setsid sh -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 sh -c "$1"' sh "$2" &
units=$!

status=0
wait "$units" || status=$?
units=''
tail --lines=+1 --follow --pid="$guests" "$log" &
wait $!
wait "$guests" || status=$?
guests=''
exit "$status"
