"""A distribution that publishes a cloud image: a key, signed checksum files, a web server."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Signer:
    """A key of its own in a GnuPG home of its own."""

    home: Path

    @classmethod
    def make(cls, home: Path, *, expires: str = "never", days_ago: int = 0) -> Signer:
        home.mkdir(mode=0o700)
        signer = cls(home)
        signer._gpg(
            *(f"--faked-system-time={_time(days_ago)}",) * bool(days_ago),
            *("--passphrase", "", "--quick-gen-key", "A Test <test@example.org>"),
            *("ed25519", "sign", expires),
        )
        return signer

    def _gpg(self, *words: str, text: bytes = b"") -> bytes:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--no-tty", *words]
        return subprocess.run(argv, input=text, capture_output=True, check=True).stdout

    @property
    def fingerprint(self) -> str:
        listed = self._gpg("--list-keys", "--with-colons").decode()
        return next(line for line in listed.splitlines() if line.startswith("fpr")).split(":")[9]

    def keyring(self, *, armored: bool = False) -> bytes:
        return self._gpg(*["--armor"] * armored, "--export")

    def detached(self, text: bytes, *, days_ago: int = 0) -> bytes:
        faked = [f"--faked-system-time={_time(days_ago)}"] if days_ago else []
        return self._gpg(*faked, "--detach-sign", "--output", "-", text=text)

    def clear(self, text: bytes) -> bytes:
        return self._gpg("--clear-sign", "--output", "-", text=text)

    def stop(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=True)


def _time(days_ago: int) -> str:
    import datetime

    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
    return moment.strftime("%Y%m%dT%H%M%S")


@dataclass
class Server:
    """Files by path, and what goes wrong with them. `asked`: paths with the Range asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut_at: dict[str, list[int]] = field(default_factory=dict)
    """Path to how many bytes are sent of each answer before the connection is closed."""
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def publish(self, name: str, image: bytes, signer: Signer) -> None:
        """As Debian and Ubuntu do (SUMS, SUMS.sign), and as Fedora does (CHECKSUM)."""
        sums = f"{hashlib.sha512(image).hexdigest()}  {name}\n".encode()
        tagged = f"SHA256 ({name}) = {hashlib.sha256(image).hexdigest()}\n".encode()
        self.files |= {
            f"/{name}": image,
            "/SUMS": sums,
            "/SUMS.sign": signer.detached(sums),
            "/CHECKSUM": signer.clear(b"# a comment\n" + tagged),
        }


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *words: object) -> None:
        self._of = server
        super().__init__(*words)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        of, path = self._of, self.path
        of.asked.append((path, self.headers.get("Range")))
        if path in of.redirects:
            self.send_response(302)
            self.send_header("Location", of.redirects[path])
            self.end_headers()
            return
        if path not in of.files:
            self.send_error(404)
            return
        data, start = of.files[path], 0
        if of.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        rest = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(of.claimed_bytes.get(path, len(rest))))
        self.end_headers()
        cuts = of.cut_at.get(path)
        self.wfile.write(rest[: cuts.pop(0)] if cuts else rest)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    of = Server()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, of))
    of.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    try:
        yield of
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
