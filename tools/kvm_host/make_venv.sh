#!/bin/sh
# Make the emulated KVM host's .venv in its own tree, with its Python and compilers:
#   make_venv.sh TREE CHECKOUT SCRATCH
# In mount and PID namespaces that the caller made. Neither the tree nor the checkout is changed:
# both lie under layers in SCRATCH. The .venv comes out in SCRATCH/venv.
set -eu

tree=$1
checkout=$2
scratch=$3
root=$scratch/root
mkdir -p "$root" "$scratch/venv" "$scratch/of-tree" "$scratch/of-checkout"

# layered FOLDER LAYER AT
layered() {
    mkdir "$2/upper" "$2/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$3"
}

layered "$tree" "$scratch/of-tree" "$root"
mkdir -p "$root$checkout"
layered "$checkout" "$scratch/of-checkout" "$root$checkout"
# A worktree's may be a link.
[ ! -L "$root$checkout/.venv" ] || rm "$root$checkout/.venv"
mkdir -p "$root$checkout/.venv"
mount --bind "$scratch/venv" "$root$checkout/.venv"

# How this machine reaches its package index.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || install -D -m 644 "$file" "$root$file"
done

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec env -u PIP_FIND_LINKS -u PYENV_ROOT -u PYTHONPATH -u TMPDIR HOME=/root LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" env -C "$checkout" tools/setup.sh python
