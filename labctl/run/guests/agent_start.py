"""Start labctl's runner in a guest by the agent that the guest brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.errors import HostError
from labctl.domain.agent import GuestAgent
from labctl.domain.calls import ConnectionLostError
from labctl.domain.session import RunningGuest
from labctl.run.guests.guest_logs import console_end


def start_runner(
    running: RunningGuest,
    runner: bytes,
    paths: Sequence[str],
    packages: Sequence[str],
    console: Path,
    deadline: Deadline,
) -> None:
    """Start labctl's runner in a guest that boots, by its agent. `runner`: its archive; `paths`:
    what it needs to be there; `packages`: Debian's that bring it. Raises HostError with the
    console's end where the agent doesn't answer."""
    agent = GuestAgent(running.agent)
    try:
        agent.wait(deadline)
    except ConnectionLostError:
        raise  # the guest's console has nothing to say of that
    except HostError as error:
        message = f"{error.message}{console_end(console)}"
        raise HostError(message, hint=error.hint) from error
    agent.start_runner(runner, paths, packages)
