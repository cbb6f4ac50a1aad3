"""Keep a trial's readings so far, for metrics derived from others."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.store.samples import HELPERS, Reading, Sample, base_name, sample_key


class MissingReadingError(Exception):
    """Report that a reading is missing; the message is the reason, a sentence."""


class Known:
    """Hold values by key, with a reason for each that is unavailable, absent or a zero divisor."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._values: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        for reading in readings:
            if isinstance(reading, Sample):
                self._values[reading.key] = reading.value
            else:
                self._reasons[reading.metric] = reading.reason

    def value(self, key: str) -> float:
        """Raise MissingReadingError."""
        if key not in self._values:
            # A metric may be unavailable as a whole, with all its labels.
            every = self._reasons.get(base_name(key), f"there is no {key}.")
            raise MissingReadingError(self._reasons.get(key, every))
        return self._values[key]

    def positive(self, key: str) -> float:
        """Raise MissingReadingError."""
        value = self.value(key)
        if value <= 0:
            raise MissingReadingError(f"{key} is not above 0.")
        return value

    def workload_cpu_s(self, kind: str) -> float:
        """Return the CPU seconds of the vCPU threads, natively of the workload.

        Raises MissingReadingError.
        """
        if kind == "guest":
            return self.positive("host_cpu{thread=vcpu}") * self.value("host_window")
        return self.positive("host_cpu{thread=workload}") * self.value("duration")

    def all_cpu_s(self, kind: str) -> float:
        """Return the CPU seconds that the machine costs its host, including a guest's helpers,
        iothreads and vhost workers. Raises MissingReadingError."""
        total = self.workload_cpu_s(kind)
        if kind == "guest":
            for role in HELPERS:
                key = sample_key("host_cpu", {"thread": role})
                if key in self._values or key in self._reasons:
                    total += self.value(key) * self.value("host_window")
        return total
