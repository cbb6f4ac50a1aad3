"""Try inputs at one target, in this process: what a crash is, and where it is kept."""

from __future__ import annotations

import hashlib
import random
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import Target

MOST_S = 5.0
MOST_BYTES = 1 << 30


class TooLong(BaseException):
    """Report an input that takes more CPU time than it may; no reader catches it."""


@dataclass
class Tried:
    """Count the inputs of a target, and keep one input for each kind of crash: type of the
    exception and the line of labctl that raised it."""

    name: str
    target: Target
    place: Path
    inputs: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    crashes: dict[str, bytes] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def try_one(self, data: bytes) -> str | None:
        """Return the kind of the crash; None if there was none."""
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
        kind = None
        try:
            self.target.read(data, self.place)
            self.accepted += 1
        except self.target.allowed:
            pass
        except (Exception, TooLong) as error:
            kind = _kind(error)
            self.crashes.setdefault(kind, data)
            self.told.setdefault(kind, "".join(traceback.format_exception(error)[-6:]))
            self._tidy()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.inputs += 1
        self.slowest_s = max(self.slowest_s, time.process_time() - begun)
        return kind

    def _tidy(self) -> None:
        for left in self.place.iterdir():
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def corpus(self, seeds: list[bytes]) -> Path:
        """Write the seeds into a folder, from which coverage is found first."""
        folder = self.place.with_name(f"{self.place.name}-corpus")
        folder.mkdir()
        for number, data in enumerate(seeds):
            (folder / str(number)).write_bytes(data)
        return folder

    def clear(self) -> None:
        """Remove its folders."""
        for folder in (self.place, self.place.with_name(f"{self.place.name}-corpus")):
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path) -> None:
        """Write an input for each kind of crash."""
        for kind, data in self.crashes.items():
            digest = hashlib.sha256(data).hexdigest()[:8]
            folder.mkdir(parents=True, exist_ok=True)
            stem = folder / f"{self.name.replace(' ', '-').replace('/', '-')}-{digest}"
            stem.write_bytes(data)
            stem.with_name(f"{stem.name}.txt").write_text(f"{kind}\n{self.told[kind]}")


def _kind(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/labctl/" in frame.filename] or frames[-1:]
    at = ours[-1]
    return f"{type(error).__name__} in {at.filename.rpartition('/labctl/')[2]}:{at.lineno}"


@contextmanager
def limits() -> Iterator[None]:
    """Hold inputs to a gibibyte of memory beyond what the process has, and to their CPU time."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def altered_inputs(target: Target, chance: random.Random, seeds: list[bytes]) -> Iterator[bytes]:
    """Yield altered seeds without end; some are altered again."""
    while True:
        data = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            data = target.mutate(data, chance)
        yield data
