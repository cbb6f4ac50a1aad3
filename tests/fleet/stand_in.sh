#!/bin/sh
# A labctl that measures nothing: its run is one that was recorded before. What a host does is in
# STAND/HOST.do: "seconds N", "fail" (the run fails), "refuse" (it doesn't start), "other" (its run
# is not what its digest says), "block" (its progress.json can't be read) or "garbage" (it is none). Every call is a line of
# STAND/HOST.calls.
stand=@STAND@
host=$(hostname)
echo "$*" >> "$stand/$host.calls"
read -r deed seconds < "$stand/$host.do" 2>/dev/null || { deed=seconds; seconds=1; }

# Each host may have a run of its own.
own=$stand/$host
[ -e "$own.digest" ] || own=$stand/all

tell() { # STATUS DONE MORE: writes progress.json as labctl does, whole or not at all
  printf '{\n "schema": 1,\n "run": "run-1",\n "status": "%s",\n "pid": %s,\n "done": %s,\n "planned": 4%s\n}\n' \
    "$1" "$2" "$3" "$4" > "$run/.new"
  mv "$run/.new" "$run/progress.json"
}

results() { # The word after --results, or the folder above that after --resume.
  while [ $# -gt 1 ]; do
    case $1 in
      --results) echo "$2" ;;
      --resume) dirname "$2" ;;
    esac
    shift
  done
}

case "$1 $2" in
  "--version "*) echo "labctl, version @VERSION@" ;;
  "sweep "*|"advise "*)
    [ "$deed" != refuse ] || { echo "labctl: no QEMU here" >&2; exit 3; }
    run=$(results "$@")/run-1
    mkdir -p "$run"
    # shellcheck disable=SC2016  # it is the inner shell's to expand
    setsid sh -c '
      : labctl
      while [ ! -e "$0/pid" ]; do sleep 0.05; done
      exec "$1" --go-on "$0" "$2" "$3"' "$run" "$0" "$deed" "${seconds:-1}" \
      > /dev/null 2>&1 < /dev/null &
    tell running $! 0
    [ "$deed" != block ] || { rm "$run/progress.json"; mkfifo "$run/progress.json"; }
    [ "$deed" != garbage ] || echo '{oops}' > "$run/progress.json"
    echo $! > "$run/pid"
    printf '{"schema": 1, "run": "run-1", "path": "%s", "pid": %s}\n' "$run" $!
    ;;
  "--go-on "*)
    run=$2 pid=$(cat "$2/pid")
    rm "$run/pid"
    sleep "$4"
    case $3 in
      fail) tell failed "$pid" 1 ',
 "failure": "the guest failed to boot 2 times in a row"' ;;
      garbage) ;;
      other) tell 'done' "$pid" 4 ",
 \"digest\": \"$(sha256sum < /dev/null | cut -d' ' -f1)\"" ;;
      *) tell 'done' "$pid" 4 ",
 \"digest\": \"$(cat "$own.digest")\"" ;;
    esac
    ;;
  "run export") cp "$own.run.tar.xz" "$5" ;;
  *) echo "labctl: a stand-in has no $1" >&2; exit 2 ;;
esac
