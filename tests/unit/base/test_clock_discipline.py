"""What the kernel says of how it steers the clock."""

from __future__ import annotations

from labctl.base.kernel import clock_discipline


def test_a_machine_that_tells_is_steered_within_what_the_kernel_allows() -> None:
    found = clock_discipline()
    if found is not None:  # a container may forbid the question
        # 500 ppm by frequency, and 10 % by the length of a tick (adjtimex(2)).
        assert abs(found.ppm) <= 100_500
        assert found.pending_ns >= 0
