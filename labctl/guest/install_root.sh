#!/bin/sh
# Run a command in a tree that is being made, inside namespaces that the caller made for it:
#   install_root.sh TREE COMMAND...
# It sees the tree read-write, with the host's network and name resolution, and runs nothing of
# the host's: /run is empty, so that no script finds a systemd to talk to.
set -eu

tree=$1
shift
mount -t proc proc "$tree/proc"
mount -t sysfs -o ro sysfs "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=0755 tmpfs "$tree/run"
mount -t tmpfs -o mode=1777 tmpfs "$tree/tmp"
for file in /etc/resolv.conf /etc/hosts; do
    if [ -e "$file" ] && [ -f "$tree$file" ] && [ ! -L "$tree$file" ]; then
        mount --bind "$file" "$tree$file"
        mount -o remount,bind,ro "$tree$file"
    fi
done
exec chroot "$tree" "$@"
