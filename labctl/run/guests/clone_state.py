"""Look at a clone, and make its state another than the other clones'."""

from __future__ import annotations

import time
from collections.abc import Sequence

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError
from labctl.base.last_words import last_words
from labctl.domain.asked import EMULATOR, IOTHREAD, VCPU, ExpectedThread, mismatches
from labctl.domain.readback import read_threads
from labctl.domain.session import RunningGuest
from labctl.host.cgroups import Layout, placement, placement_problems

_RESEED_S = 60.0

# RNDADDENTROPY and RNDRESEEDCRNG (random(4), linux/random.h): what is only written to /dev/urandom
# is used when the kernel next reseeds, up to a minute later.
_RESEED = """\
import fcntl, os, struct
seed = bytes.fromhex(os.environ["SEED"])
device = os.open("/dev/urandom", os.O_RDWR)
fcntl.ioctl(device, 0x40085203, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
fcntl.ioctl(device, 0x5207)
"""


def confined_threads(running: RunningGuest, cpus: CpuSet) -> list[ExpectedThread]:
    """Return a guest's threads as they are to be: all with these CPUs and the usual policy."""
    vcpus, iothreads = running.vcpu_threads(), running.iothread_threads()
    return [
        ExpectedThread(role=role, index=index, cpus=cpus, policy="other", priority=0)
        for role, indices in ((EMULATOR, (0,)), (VCPU, vcpus), (IOTHREAD, iothreads))
        for index in indices
    ]


def check_place(layout: Layout, running: RunningGuest, expected: Sequence[ExpectedThread]) -> None:
    """Raise BrokenError unless a guest's threads are as expected, and compete as a measured guest's
    do."""
    vcpus, iothreads = running.vcpu_threads(), running.iothread_threads()
    problems = [
        *mismatches(expected, read_threads(running.pid, vcpus, iothreads)),
        *placement_problems(layout, placement(running.pid)),
    ]
    if problems:
        raise BrokenError(f"the guest {running.name} is not as asked: {'; '.join(problems)}")


def reseed(channel: Channel, seed: bytes) -> None:
    """Begin the guest's random numbers anew: they would be the same in all clones. Raises
    BrokenError with what the guest says when it can't."""
    command = Command(argv=("python3", "-c", _RESEED), env={"SEED": seed.hex()})
    result = channel.run(command, seconds=_RESEED_S)
    if result.returncode != 0:
        said = last_words(result.stderr)
        raise BrokenError(f"{channel.name}: its random numbers can't begin anew: {said}")


def cpu_ns(running: RunningGuest) -> int:
    """Return the CPU time of a guest's QEMU with all threads that it has had, in ns. Raises
    BrokenError when it is gone.

    A process's clock is numbered as the kernel has it (include/linux/posix-timers.h,
    CPUCLOCK_SCHED)."""
    try:
        return time.clock_gettime_ns((~running.pid << 3) | 2)
    except OSError as error:
        raise BrokenError(f"the guest {running.name} is gone") from error
