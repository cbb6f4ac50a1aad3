#!/bin/sh
# Run a command in an image's tree, inside a mount namespace that the caller made for it:
#   native_root.sh TREE [SOURCE TARGET]... -- COMMAND...
# The root is a tmpfs that holds the tree's entries as read-only bind mounts: the very same files
# (inodes) as the guest's, nothing writable, and mount points that the tree itself need not have.
# Each SOURCE (a folder, or a file, which is read-only) appears at TARGET, below / or /run.
# Each program that it starts costs a millisecond or two, and a quick sweep comes here 350 times.
set -eu

# Any folder that exists everywhere and that nothing below needs: the tree may lie in /mnt.
root=/sys

copy_links() {
    for entry in *; do
        [ ! -L "$entry" ] || set -- "$@" "$entry"
    done
    [ $# = 0 ] || cp -P -- "$@" "$root"
}

bind_folders() {
    for entry in *; do
        case $entry in
        dev | proc | run | sys | tmp) continue ;;
        esac
        [ -L "$entry" ] || [ ! -d "$entry" ] || set -- "$@" "$entry"
    done
    (cd "$root" && mkdir -- "$@" dev proc run sys tmp)
    for entry; do
        mount -o bind,ro "./$entry" "$root/$entry"
    done
}

tree=$1
shift
mount -t tmpfs -o mode=0755 tmpfs "$root"
here=$PWD
cd "$tree"
copy_links
bind_folders
cd "$here"

mount --rbind /dev "$root/dev"
[ ! -d /dev/shm ] || mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
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
        mount -o bind,ro "$1" "$root$2"
    fi
    shift 2
done
shift

exec chroot "$root" "$@"
