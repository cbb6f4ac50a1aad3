#!/usr/bin/env bash
# hosts.sh [-n COUNT] CMD…: runs CMD beside COUNT (default 4) "hosts", each an sshd with its own
# network, mount, process and host name space and a copy-on-write copy of this machine's root.
#
# h1, h2, …: 10.77.0.11, .12, …; the last one's key isn't the one in known_hosts. CMD finds
#   $HOSTS/hosts.yml   inventory        $ANSIBLE_CONFIG  uses it, the key and known_hosts
#   $HOSTS/die hN      hN's processes are killed: its connections are reset
#   $HOSTS/cut hN      hN's cable is pulled first: nobody is told
#   $HOSTS/enter hN …  a command in hN, not through ssh
# All of it hangs on one process that is process 1 of its own namespace: when CMD ends, or this is
# killed (SIGKILL too), the kernel takes hosts, interfaces and mounts away. Nothing is installed,
# and this machine's network is not touched. It needs in its environment:
#   RIG_PACKAGES           a folder of what the hosts have beside this machine's files: sshd
#   RIG_CHECKOUT           the folder of labctl's code and its .venv, which hosts may read
#   RIG_SHARED             a folder that hosts write to as this machine does
#   RIG_MEASURES           yes: hosts make cgroups of this machine's. Only with its own lock: labctls
#                          of other process namespaces take each other's for those of the dead
#   RIG_LOCK               the folder of labctl's lock on a host
#   RIG_LOCK_FROM          what is in its place on all of them; '': each has its own
#   RIG_ROOT               h1's root instead of this machine's, with an sshd of its own; ''
set -euo pipefail
if [ "${RIG:-}" = "" ]; then
  RIG=hub exec unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    --propagation private -- "$0" "$@"
fi

if [ "$RIG" = host ]; then
  # In a host: its root becomes a copy, then sshd becomes its process 1.
  name=$1 root=$HOSTS/$1/root
  read -r _ < "$HOSTS/$name/go"          # the hub has moved our interface in
  hostname "$name"
  ip link set lo up
  ip link set eth0 up
  ip addr add "$(cat "$HOSTS/$name/address")/24" dev eth0
  lower=$HOSTS/packages:/
  if [ "$name" = h1 ] && [ "$RIG_ROOT" ]; then lower=$RIG_ROOT; fi
  mount -t overlay overlay "$root" \
    -o "lowerdir=$lower,upperdir=$HOSTS/$name/up,workdir=$HOSTS/$name/work"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"                   # one kernel: nobody may tune it …
  mount --bind "$root/proc/sys" "$root/proc/sys"
  mount -o remount,bind,ro "$root/proc/sys"
  mount --bind "$root/proc/sys/net" "$root/proc/sys/net"   # … but for what each network has of its own
  mount -o remount,bind,rw "$root/proc/sys/net"
  if [ "$RIG_MEASURES" = yes ]; then
    mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
  fi
  mount -t tmpfs tmpfs "$root/sys/kernel/mm/ksm"           # a setting to tune that moves nothing
  echo 0 > "$root/sys/kernel/mm/ksm/run"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/run"
  mount -t tmpfs tmpfs "$root/tmp"
  mount -t tmpfs -o mode=700 tmpfs "$root/root"
  mkdir -p "$root/$RIG_CHECKOUT"                           # also where it lies in /tmp or /root
  mount --bind "$RIG_CHECKOUT" "$root/$RIG_CHECKOUT"
  mount -o remount,bind,ro "$root/$RIG_CHECKOUT"
  mkdir -p "$root/$RIG_LOCK"
  if [ "$RIG_LOCK_FROM" ]; then
    mount --bind /mnt "$root/$RIG_LOCK"
  fi
  mkdir -p "$root/$RIG_SHARED"                             # in a root of another release
  mount --bind "$RIG_SHARED" "$root/$RIG_SHARED"
  mkdir -p "$root/run/sshd" "$root/root/.ssh"
  cp "$HOSTS/user.pub" "$root/root/.ssh/authorized_keys"
  # An ordinary user, who becomes root without a password.
  echo 'op:x:1999:100::/home/op:/bin/sh' >> "$root/etc/passwd"
  mkdir -p "$root/home/op/.ssh"
  cp "$HOSTS/user.pub" "$root/home/op/.ssh/authorized_keys"
  chown -R 1999 "$root/home/op"
  for kind in auth account session; do echo "$kind sufficient pam_permit.so"; done > "$root/etc/pam.d/su"
  echo "$name" | md5sum | cut -d' ' -f1 > "$root/etc/machine-id"
  cp "$HOSTS/$name/key" "$root/etc/ssh/ssh_host_ed25519_key"
  grep -q ^sshd: "$root/etc/passwd" ||
    echo 'sshd:x:105:65534::/run/sshd:/usr/sbin/nologin' >> "$root/etc/passwd"
  cat > "$root/etc/ssh/sshd_config" <<-END
	HostKey /etc/ssh/ssh_host_ed25519_key
	PidFile none
	PermitRootLogin prohibit-password
	Subsystem sftp /usr/lib/openssh/sftp-server
	END
  unset HOSTS RIG
  # A root of its own, no chroot: libvirt makes namespaces from it.
  mkdir "$root/.before"
  cd "$root"
  pivot_root . .before
  exec chroot . sh -c 'umount -l /.before && rmdir /.before && exec /usr/sbin/sshd -D -e'
fi

count=4
if [ "$1" = -n ]; then count=$2; shift 2; fi
# Folders of this machine that CMD may see; the rig's own files lie in memory.
export HOSTS=/run/rig
trap 'exit 130' INT TERM
# Real sweeps in the hosts share this machine's CPUs, so they share its lock.
if [ "$RIG_LOCK_FROM" ]; then
  mkdir -p "$RIG_LOCK_FROM"
  mount --bind "$RIG_LOCK_FROM" /mnt
fi
mount -t tmpfs tmpfs /run
mkdir -p "$HOSTS/tmp"
cp -r "$RIG_PACKAGES" "$HOSTS/packages"
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.1/24 dev br0
ip link set br0 up
ssh-keygen -q -t ed25519 -N '' -C rig -f "$HOSTS/user"
ssh-keygen -q -t ed25519 -N '' -C other -f "$HOSTS/other"

echo 'all: {hosts: {' > "$HOSTS/hosts.yml"
for n in $(seq "$count"); do
  name=h$n address=10.77.0.$((10 + n))
  mkdir -p "$HOSTS/$name"/{up,work,root}
  mkfifo "$HOSTS/$name/go"
  echo "$address" > "$HOSTS/$name/address"
  ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$HOSTS/$name/key"
  key=$HOSTS/$name/key.pub
  if [ "$n" = "$count" ]; then key=$HOSTS/other.pub; fi
  echo "$address $(cut -d' ' -f1,2 "$key")" >> "$HOSTS/known_hosts"
  echo "$name: {ansible_host: $address}," >> "$HOSTS/hosts.yml"
  # setsid: a signal to CMD's process group is none to a host.
  RIG=host setsid unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc \
    --propagation private -- "$0" "$name" > "$HOSTS/$name/log" 2>&1 &
  unshare_pid=$!
  echo "$unshare_pid" > "$HOSTS/$name/unshare"
  until child=$(cat "/proc/$unshare_pid/task/$unshare_pid/children") && [ -n "$child" ]; do
    sleep 0.01
  done
  echo "${child% }" > "$HOSTS/$name/pid"
  ip link add "$name" type veth peer name eth0 netns "${child% }"
  ip link set "$name" master br0 up
  echo > "$HOSTS/$name/go"
done
echo '}}' >> "$HOSTS/hosts.yml"

cat > "$HOSTS/die" <<'END'
#!/bin/sh
kill -9 "$(cat "$HOSTS/$1/pid")"
END
cat > "$HOSTS/cut" <<'END'
#!/bin/sh
ip link set "$1" down && kill -9 "$(cat "$HOSTS/$1/pid")"
END
cat > "$HOSTS/enter" <<'END'
#!/bin/sh
name=$1; shift
exec nsenter --target "$(cat "$HOSTS/$name/pid")" --all --root --wd "$@"
END
chmod +x "$HOSTS"/{die,cut,enter}

cat > "$HOSTS/ansible.cfg" <<END
[defaults]
inventory = $HOSTS/hosts.yml
private_key_file = $HOSTS/user
remote_user = root
interpreter_python = /usr/bin/python3
gathering = explicit
timeout = 5
local_tmp = $HOSTS/ansible
[ssh_connection]
ssh_args = -F none -o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile=$HOSTS/known_hosts -o StrictHostKeyChecking=yes ${RIG_SSH:--o ServerAliveInterval=5 -o ServerAliveCountMax=3}
control_path_dir = $HOSTS/cp
pipelining = True
END
export ANSIBLE_CONFIG=$HOSTS/ansible.cfg ANSIBLE_HOME=$HOSTS/home
for n in $(seq "$count"); do  # wait for every sshd
  for _ in $(seq 500); do
    if (exec 3<>"/dev/tcp/10.77.0.$((10 + n))/22") 2>/dev/null; then continue 2; fi
    sleep 0.01
  done
  echo "h$n did not start:" >&2
  cat "$HOSTS/h$n/log" >&2
  exit 4
done
unset RIG
"$@"
