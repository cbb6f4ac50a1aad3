"""Measure random access: each vCPU reads words of a set far larger than caches and TLB, one at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import UsageError
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import sysbench
from labctl.workloads.readers import sysbench as reader
from labctl.workloads.repeated import SHELL
from labctl.workloads.workload import (
    IntegerParameter,
    Parameters,
    Setting,
    WorkloadBase,
    integer,
)

SCRIPT = "random_access.lua"
ACCESSES = 65_536
"""Accesses of one event: milliseconds, so that p95 has its 400 events within seconds."""

# Each address depends on the word read before: no access can begin before the last one has ended.
# The order is a linear congruential sequence modulo a power of two with a full period (Hull and
# Dobell 1962: an odd increment, a multiplier of 1 modulo 4), with the multiplier and the increment
# of Press et al., Numerical Recipes, 7.1. So the set needs no list of addresses, which would take
# longer to make than a trial lasts, and its next word is in another page nearly always.
# LuaJIT compiles the loop; its bit operations are exact below 2^51, here 2^30 * 1664525.
SOURCE = f"""\
local ffi = require("ffi")
local bit = require("bit")
sysbench.cmdline.options = {{set_mib = {{"MiB of each thread's set, a power of two", 256}}}}
ffi.cdef("void *malloc(size_t); void *memset(void *, int, size_t);")
local set, mask, at
function thread_init()
  local bytes = sysbench.opt.set_mib * 1048576
  set = ffi.cast("int32_t *", ffi.C.malloc(bytes))
  if set == nil then error("no memory for the set") end
  ffi.C.memset(set, 0, bytes)
  mask = bytes / 4 - 1
  at = sysbench.tid
end
function event()
  local i = at
  for _ = 1, {ACCESSES} do
    i = bit.band(i * 1664525 + 1013904223 + set[i], mask)
  end
  at = i
end
"""

_WRITE_AND_RUN = f'printf %s "$0" > {SCRIPT} && exec "$@"'

SLOW_RATE = 5
"""Events per second and thread before the machine's rate is known: what an emulated guest does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomAccess(WorkloadBase):
    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        checked = WorkloadBase.check_parameters(self, given)
        mib = integer(checked, "set_mib")
        if mib & (mib - 1):
            raise UsageError(
                f"workload '{self.name}': 'set_mib' is {mib}, which is no power of two",
                hint=f"Give {1 << (mib.bit_length() - 1)} or {1 << mib.bit_length()}.",
            )
        return checked

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        length = (f"--time={int(setting.duration_s)}", "--events=0", sysbench.EACH_WINDOW)
        return _command(setting, *length)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        events = max(setting.vcpus, round((rate or SLOW_RATE * setting.vcpus) * window_s))
        return _command(setting, "--time=0", f"--events={events}")

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [reader.event_rate(stdout, sysbench.STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        text, where = raw.read_text(sysbench.STDOUT), str(raw.path / sysbench.STDOUT)
        return reader.readings(text, where, sysbench.STDOUT, reader.event_rate(text, where))


def thread_mib(setting: Setting) -> int:
    """Return the MiB of each thread's part: a power of two, together no more than the set."""
    return 1 << ((integer(setting.parameters, "set_mib") // setting.vcpus or 1).bit_length() - 1)


def _command(setting: Setting, *length: str) -> Command:
    return Command(
        argv=(
            SHELL,
            "-c",
            _WRITE_AND_RUN,
            SOURCE,
            sysbench.BINARY,
            f"./{SCRIPT}",
            f"--threads={setting.vcpus}",
            f"--set_mib={thread_mib(setting)}",
            *length,
            "--histogram=on",
            "run",
        )
    )


RANDOM_ACCESS = RandomAccess(
    name="random-access",
    operation="65,536 reads, each at an address that the last one tells",
    parameters=(
        # 131,072 pages of 4 KiB, against some 2,000 that a second-level TLB holds; 256 of 2 MiB.
        # Half of what studies give a guest.
        IntegerParameter(
            name="set_mib",
            default=512,
            minimum=1,
            maximum=4096,
            description="size of the set in MiB, a power of two; the threads share it in equal "
            "parts",
        ),
    ),
    binaries=(SHELL, sysbench.BINARY),
    primary="events_per_s",
    rate_metric="events_per_s",
)
