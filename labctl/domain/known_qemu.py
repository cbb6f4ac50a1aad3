"""Keep what libvirt knows of QEMU's abilities, probed where no process can open /dev/kvm.

libvirt asks QEMU as the user that it is to run as, but with CAP_DAC_OVERRIDE, so that QEMU finds
KVM on a host whose /dev/kvm that user can't open. Then libvirt takes its answer for outdated and
asks again on every call, seconds each (virQEMUCapsIsValid). An answer without KVM stays true.
"""

from __future__ import annotations

import sys
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.process import run

_HIDDEN = """\
mount --bind "$1" /dev/kvm
exec "$2" -P -m labctl.domain.known_qemu "$3"
"""


def find_out_without_kvm(root: Path, uri: str) -> None:
    """Have libvirt look at QEMU in a mount namespace of its own, unless what it has kept is true.
    Where that fails its calls take longer, and nothing else is different."""
    nothing = root / "no-kvm"
    nothing.touch(mode=0o600)  # neither a device nor open to QEMU's user
    shell = ("sh", "-e", "-c", _HIDDEN, "sh", str(nothing), sys.executable, uri)
    run(
        ["unshare", "--mount", "--propagation", "private", *shell],
        deadline=Deadline.after(120, "asking QEMU what it can do"),
        check=False,
    )


def _look(uri: str) -> None:
    from labctl.domain.session import Session

    with Session.connected(uri) as session:
        session.look_at_qemu()


if __name__ == "__main__":
    _look(sys.argv[1])
