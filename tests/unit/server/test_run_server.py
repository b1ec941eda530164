"""Sockets: two servers never share a port, whenever they start; a server stops with connections open."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.server.application import create_app
from heedful.server.run_server import bind, run_server, url_of
from served import running


def test_a_port_that_another_server_took_while_models_were_loaded_is_refused(make_trained: Any) -> None:
    """Both bind it while neither listens; the one whose models are loaded first begins to."""
    with bind("127.0.0.1", 0) as slow, bind("127.0.0.1", slow.getsockname()[1]) as fast:
        app = create_app({"m": make_trained("laptop-translator")})
        fast.listen()
        with pytest.raises(UsageError, match="cannot listen on 127"):
            run_server(app, slow, lambda: None)
        with pytest.raises(UsageError, match="another --port"):
            bind("127.0.0.1", slow.getsockname()[1])
        app.state.serving.engine.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.1"])
def test_a_host_that_is_not_this_machines_is_named(host: str) -> None:
    with pytest.raises(UsageError, match="choose another --host"):
        bind(host, 0)


def test_an_address_of_ipv6_is_in_brackets() -> None:
    with bind("::1", 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_server_stops_soon_whatever_its_clients_left_open(make_trained: Any) -> None:
    body = json.dumps({"prompt": "May", "stream": True, "max_length": 1_000, "temperature": 1.0}).encode()
    lines = ("POST /api/v1/generate HTTP/1.1", "host: localhost", "content-type: application/json")
    head = "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode()
    with ExitStack() as open_connections, running({"writer": make_trained("laptop-writer")}) as server:
        for content in (b"", head[:20], head + body[:9], head + body):
            connection = open_connections.enter_context(server.connect())
            connection.sendall(content)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        stopped = time.monotonic()
    assert server.url not in {thread.name for thread in threading.enumerate()}
    assert time.monotonic() - stopped < 30
