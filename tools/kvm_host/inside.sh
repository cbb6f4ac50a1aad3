#!/bin/sh
# In the emulated KVM host: the checkout and the guest image in their places, then a command.
#   inside.sh CHECKOUT IMAGE COMMAND...
set -eu

checkout=$1
image=/var/lib/labctl/images/$2
shift 2

# Where it lies outside, as its .venv holds that path. What tests write in it is kept in memory.
layer=/run/checkout-layer
mkdir -p "$checkout" "$layer"
mount -t tmpfs tmpfs "$layer"
mkdir "$layer/upper" "$layer/work"
mount -t overlay -o "lowerdir=/run/checkout,upperdir=$layer/upper,workdir=$layer/work" \
    overlay "$checkout"

mkdir -p "$image"
mount /dev/vdb "$image"

# Now, and not when udev gets to it: without KVM there is nothing to test here.
modprobe kvm_amd

cd "$checkout"
tools/setup.sh account
exec "$@"
