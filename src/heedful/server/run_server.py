"""Run the application on a socket until a signal: requests in flight are answered, then the process exits with 0."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from fastapi import FastAPI
from uvicorn import Config, Server

from heedful.errors import UsageError
from heedful.server.http_protocol import DeadlineProtocol
from heedful.server.serving import Serving

CONNECTIONS = 4_096
"""Connections beyond which requests are answered with 503."""
KEEP_ALIVE_SECONDS = 15
BACKLOG = 2_048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that port 0 is known before the models are loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            stack.pop_all()  # it stays open
    except OSError as error:
        raise cannot_listen(host, port, error) from None
    return listener


def cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
    return UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {option}")


def url_of(listener: socket.socket) -> str:
    """The address that clients use."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: FastAPI, listener: socket.socket, started: Callable[[], object]) -> None:
    """Serve until SIGTERM or SIGINT, then answer the requests in flight and return. A second signal ends them."""
    raise_open_files(2 * CONNECTIONS)
    try:
        listener.listen(BACKLOG)  # fails if another server began to listen while the models were loaded
    except OSError as error:
        host, port, *_ = listener.getsockname()
        raise cannot_listen(host, port, error) from None
    make_server(app, started).run(sockets=[listener])


def make_server(app: FastAPI, started: Callable[[], object]) -> DrainingServer:
    """The server of an application; `started` is called when it answers."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # a client that has gone while it was written to is no news
    config = Config(
        app,
        http=DeadlineProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # what clients send is in the access log
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(config, app.state.serving, started)


class DrainingServer(Server):
    """A server that, at a signal, first lets the requests in flight end while it still answers /ready with 503."""

    def __init__(self, config: Config, serving: Serving, started_callback: Callable[[], object]) -> None:
        super().__init__(config)
        self.serving, self.started_callback = serving, started_callback
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_callback()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the event loop; unlike uvicorn, without raising them again when all is done."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reopen_log)
        yield

    def _stop(self) -> None:
        if self._drain is not None:
            self.serving.engine.close()  # which ends the requests, and with them the draining
            return
        self.serving.draining = True
        self._drain = asyncio.get_running_loop().create_task(self._drain_engine())

    async def _drain_engine(self) -> None:
        """Let the requests in flight end; those that take longer are answered that the server is shutting down."""
        await asyncio.to_thread(self.serving.engine.drain, self.serving.settings.drain)
        self.serving.engine.close()
        self.should_exit = True

    def _reopen_log(self) -> None:
        log: Any = self.config.app.state.log  # type: ignore[union-attr]
        with suppress(OSError):
            log.open()


def exempt_imports_from_collection() -> None:
    """Before models are loaded: without torch's objects a garbage collection takes milliseconds, not half a second."""
    gc.collect()
    gc.freeze()


def raise_open_files(wanted: int) -> None:
    """Raise the limit of open files, which is one for each connection, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
