"""Check the requirements of a link between a guest and its peer: tap devices, vhost-net,
namespaces."""

from __future__ import annotations

from labctl.host.doctor.check import Check, Result, Scope, fine, some, warn
from labctl.host.doctor.reader import Reader

GROUP = "network"
TUN, VHOST = "/dev/net/tun", "/dev/vhost-net"
_PROGRAMS = ("ip", "nsenter")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Capabilities (linux/capability.h) needed to make devices, and to make and enter namespaces."""


def tap(reader: Reader, scope: Scope) -> Result:
    if reader.exists(TUN):
        return fine(f"{TUN} exists", True)
    if not (scope.has_link or scope.requiring(lambda need: TUN in need.paths)):
        return fine(f"{TUN} is missing, but nothing here needs it", False)
    return warn(
        f"{TUN} is missing: no tap devices, so no studies that send packets",
        "modprobe tun  # in a container: run it with --device /dev/net/tun",
        False,
    )


def vhost_net(reader: Reader, scope: Scope) -> Result:
    if reader.exists(VHOST):
        return fine(f"{VHOST} exists", True)
    wanting = scope.requiring(lambda need: VHOST in need.paths)
    if not wanting:
        return fine(f"{VHOST} is missing, but nothing here needs it", False)
    return warn(
        f"{VHOST} is missing, but {some(wanting)} needs it: QEMU itself handles each packet",
        "modprobe vhost_net  # if it says 'not found', use a kernel with CONFIG_VHOST_NET",
        False,
    )


def namespaces(reader: Reader, scope: Scope) -> Result:
    if not scope.has_link:
        return fine("nothing here needs them")
    if not reader.exists("/proc/self/ns/net"):
        return warn(
            "the kernel has no network namespaces",
            "Boot a kernel with CONFIG_NET_NS.",
            False,
        )
    if missing := [name for name in _PROGRAMS if reader.program(name) is None]:
        return warn(f"not installed: {', '.join(missing)}", "labctl setup", False)
    if lacking := [n for n, bit in _CAPABILITIES.items() if not reader.has_capability(bit)]:
        return warn(
            f"no permission to create them: {' and '.join(lacking)} missing",
            "Run labctl as root (in a container: with --privileged).",
            False,
        )
    return fine("a namespace can be created for the peer", True)


CHECKS = (
    Check(
        "tap-devices",
        GROUP,
        "A guest's packets reach its peer through a tap device; without one, only QEMU's "
        "user network is available.",
        tap,
    ),
    Check(
        "vhost-net",
        GROUP,
        "libvirt uses it by default for virtio-net over a tap device, so it decides the "
        "network of a baseline.",
        vhost_net,
    ),
    Check(
        "network-namespaces",
        GROUP,
        "The peer and native runs each have their own network, so the host's is not touched.",
        namespaces,
    ),
)
