#!/bin/sh
# In the emulated KVM host: the checkout and the guest image in their places, then the commands that
# come, one after the other, until the machine is ended from outside.
#   inside.sh CHECKOUT IMAGE [results]
# results: what commands write in the checkout's results/ goes out.
set -eu

checkout=$1
image=/var/lib/labctl/images/$2
results=${3:-}

# Where it lies outside: paths mean the same here and there. What tests write in it is kept in
# memory.
layer=/run/checkout-layer
mkdir -p "$checkout" "$layer"
mount -t tmpfs tmpfs "$layer"
mkdir "$layer/upper" "$layer/work"
mount -t overlay -o "lowerdir=/run/checkout,upperdir=$layer/upper,workdir=$layer/work" \
    overlay "$checkout"
# In place of the checkout's own, which is made for the machine outside and may be a link.
[ ! -L "$checkout/.venv" ] || rm "$checkout/.venv"
mkdir -p "$checkout/.venv"
mount /dev/vdc "$checkout/.venv"
if [ "$results" ]; then
    # Written through: what a command has written is outside, however the machine ends.
    mkdir -p "$checkout/results"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 results "$checkout/results"
fi

mkdir -p "$image"
mount /dev/vdb "$image"

# Now, and not when udev gets to it: without KVM there is nothing to do here.
modprobe kvm_amd

# A virtual machine (KVM_CREATE_VM) without a CPU, which stays: with the last one KVM switches SVM
# off on every CPU, and after some forty guests an emulated CPU then took no interrupt any more.
python3 -c 'import fcntl, os, signal
vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE01, 0)
signal.pause()' &

cd "$checkout"
tools/setup.sh account
export PATH="$checkout/.venv/bin:$PATH" PYTHONUNBUFFERED=1

number=1
while :; do
    task=/run/task/$number
    if [ -e "$task/command" ]; then
        status=0
        sh "$task/command" >"$task/output" 2>&1 || status=$?
        echo "$status" >"$task/status.new"
        mv "$task/status.new" "$task/status"
        number=$((number + 1))
    else
        sleep 0.2
    fi
done
