"""Send and receive messages, each a line of JSON."""

from __future__ import annotations

import json
import os
import time
from typing import Any


class Connection:
    """Send and receive lines over a file descriptor that may lose its other end and get it back."""

    def __init__(self, descriptor: int, reconnects: bool) -> None:
        self.descriptor = descriptor
        self.reconnects = reconnects
        self.buffer = b""

    def receive(self) -> dict[str, Any] | None:
        while b"\n" not in self.buffer:
            data = os.read(self.descriptor, 65536)
            if not data:
                if not self.reconnects:
                    raise EOFError
                # A virtio-serial port reads empty while the host side is closed; there is
                # nothing to wait on, and nothing is being measured then.
                self.buffer = b""
                time.sleep(0.02)
                continue
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def send(self, request: dict[str, Any], **fields: Any) -> None:
        fields["id"] = request.get("id")
        data = json.dumps(fields).encode() + b"\n"
        while data:
            data = data[os.write(self.descriptor, data) :]
