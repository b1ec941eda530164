"""The server: trained models behind HTTP, as a plain ASGI application.

app = heedful.server.create_app(["translate-1", "classify-1"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.server.application import create_app
    from heedful.server.server_settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
_MODULES = {"create_app": "application", "ServerSettings": "server_settings"}


def __getattr__(name: str) -> Any:
    """Import on first use: settings are checked before torch is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module 'heedful.server' has no attribute '{name}'")
    return getattr(import_module(f"heedful.server.{_MODULES[name]}"), name)
