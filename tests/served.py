"""Servers for tests: in this process, by the protocol and the server that `heedful serve` runs, or as the command."""

from __future__ import annotations

import asyncio
import faulthandler
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI

from heedful.server.application import create_app
from heedful.server.run_server import bind, make_server, url_of
from heedful.server.server_settings import ServerSettings

CLOSED = 0
"""Status of a request whose connection was closed before the whole response had arrived."""


@dataclass(frozen=True)
class RunningServer:
    """A running server: its address, application and models."""

    url: str
    app: FastAPI | None = None
    models: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(self.address, timeout=timeout)

    def send(self, content: bytes, timeout: float = 10.0) -> bytes:
        """Send bytes and read until the server closes the connection or the socket times out."""
        with self.connect(timeout) as connection:
            connection.sendall(content)
            return read_all(connection)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=30, trust_env=False, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, trust_env=False, **options)


@contextmanager
def running(
    models: dict[str, Any],
    settings: ServerSettings | None = None,
    create: Callable[..., FastAPI] = create_app,
    **options: Any,
) -> Iterator[RunningServer]:
    """Serve models on a free port until the block ends."""
    app = create(models, settings, **options)
    listener, started = bind("127.0.0.1", 0), threading.Event()
    url, server = url_of(listener), make_server(app, started.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name=url, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield RunningServer(url, app, models)
    finally:
        server.should_exit = True
        thread.join(60)
        if thread.is_alive():  # not a failure of the test that happens to be the last; test_run_server.py times stops
            faulthandler.dump_traceback(file=sys.__stderr__)


async def run_clients(
    server: RunningServer,
    path: str,
    bodies: Sequence[bytes],
    clients: int,
    over: Callable[[], bool],
    answered: Callable[[int, int, bytes], object],
) -> None:
    """Run clients in a closed loop, each on its own connection, until `over()`; a refused one waits for Retry-After.

    `answered` is called with the index of the request's body, the status and the content.
    """

    async def ask(index: int) -> None:
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while not over():
                index = (index + 1) % len(bodies)
                try:
                    connection = connection or await asyncio.open_connection(*server.address)
                    status, headers, content = await exchange(*connection, path, bodies[index])
                except (ConnectionError, asyncio.IncompleteReadError):
                    status, headers, content = CLOSED, {b"connection": b"close", b"retry-after": b"0.1"}, b""
                answered(index, status, content)
                if headers.get(b"connection") == b"close" and connection is not None:
                    connection[1].close()
                    connection = None
                if status != 200 and not over():
                    await asyncio.sleep(float(headers.get(b"retry-after", b"1")))
        finally:
            if connection is not None:
                connection[1].close()

    await asyncio.gather(*map(ask, range(clients)))


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send a request and read its whole response: status, headers, content."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].lower().split(b"\r\n")
    headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers[b"content-length"]))


def resident_bytes(pid: int) -> int:
    """Memory that a process occupies."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes the connection, or the socket times out."""
    received = b""
    try:
        while data := connection.recv(65_536):
            received += data
    except (TimeoutError, ConnectionError):
        pass
    return received


def start_server(
    fork_server: Any, folder: Path, *arguments: str | Path, port: int = 0, **options: Any
) -> tuple[Any, RunningServer]:
    """`heedful serve ARGUMENTS` on a free port, or this one: the process, and where it answers."""
    output = folder / "printed"
    output.unlink(missing_ok=True)
    process = fork_server.start("serve", *arguments, "--port", str(port), folder=folder, output=output, **options)
    process.wait_until(lambda: (output.exists() and "address" in output.read_text()) or process.has_ended())
    address = re.search(r"http://\S+", output.read_text())
    assert address, process.output()
    return process, RunningServer(address[0])
