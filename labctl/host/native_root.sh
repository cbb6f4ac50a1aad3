#!/bin/sh
# Run a command in an image's tree, inside a mount namespace that the caller made for it:
#   native_root.sh TREE [SOURCE TARGET]... -- COMMAND...
# The root is a tmpfs that holds the tree's entries as read-only bind mounts: the very same files
# (inodes) as the guest's, nothing writable, and mount points that the tree itself need not have.
# Each SOURCE (a folder, or a file, which is read-only) appears at TARGET, below / or /run.
set -eu

# Any folder that exists everywhere and that nothing below needs: the tree may lie in /mnt.
root=/sys

tree=$1
shift
mount -t tmpfs -o mode=0755 tmpfs "$root"
for entry in "$tree"/*; do
    name=${entry##*/}
    case $name in
    dev | proc | run | sys | tmp) continue ;;
    esac
    if [ -L "$entry" ]; then
        cp -P "$entry" "$root/$name"
    elif [ -d "$entry" ]; then
        mkdir "$root/$name"
        mount --bind "$entry" "$root/$name"
        mount -o remount,bind,ro "$root/$name"
    fi
done

mkdir "$root/dev" "$root/proc" "$root/run" "$root/sys" "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"

while [ "$1" != -- ]; do
    if [ -d "$1" ]; then
        mkdir -p "$root$2"
        mount --bind "$1" "$root$2"
    else
        : >"$root$2"
        mount --bind "$1" "$root$2"
        mount -o remount,bind,ro "$root$2"
    fi
    shift 2
done
shift

exec chroot "$root" "$@"
