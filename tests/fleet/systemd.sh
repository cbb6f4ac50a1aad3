#!/bin/sh
# A systemd of its own, as process 1 of namespaces: systemd.sh STAND runs until it is killed. Its
# root is an overlay of this machine's, its cgroups lie in one of its own, nothing of the kernel's
# but a setting that moves nothing can be written, and it starts no unit that nobody asks for.
set -eu
stand=$1
root=$stand/root
mkdir -p "$stand/cgroups" "$stand/upper" "$stand/work" "$root"
mount -t cgroup2 none "$stand/cgroups"
mkdir "$stand/cgroups/$(basename "$stand")"
echo $$ > "$stand/cgroups/$(basename "$stand")/cgroup.procs"
umount "$stand/cgroups"

mount -t tmpfs tmpfs "$stand/upper"
mkdir "$stand/upper/up" "$stand/upper/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$stand/upper/up,workdir=$stand/upper/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/kernel/mm/ksm"
echo 0 > "$root/sys/kernel/mm/ksm/run"
mount --rbind /dev "$root/dev"
for folder in run tmp; do mount -t tmpfs tmpfs "$root/$folder"; done
for folder in "$RIG_CHECKOUT" "$stand"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
done
rm -rf "$root"/lib/systemd/system/*.wants "$root"/etc/systemd/system/*.wants
printf '[Unit]\nDefaultDependencies=no\n' > "$root/etc/systemd/system/labctl-test.target"
for unit in sysinit basic timers; do
  cp "$root/etc/systemd/system/labctl-test.target" "$root/etc/systemd/system/$unit.target"
done
# shellcheck disable=SC2016  # it is the inner shell's to expand
exec unshare --cgroup sh -c '
  set -e
  mount -t cgroup2 none "$0/sys/fs/cgroup"
  cd "$0"
  pivot_root . mnt
  umount -l /mnt
  export container=other
  exec /lib/systemd/systemd --system --unit=labctl-test.target --log-target=null' "$root"
