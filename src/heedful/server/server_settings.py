"""Settings of the server: limits of requests, who may ask, and what is logged."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, SecretStr

from heedful.config import Config

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MIN_TOKEN = 16
"""Characters of the shortest token accepted: shorter ones can be guessed."""


class RequestLimits(Config):
    """The largest request that is served; anything beyond is refused before it costs much."""

    body_bytes: PositiveInt = 1 << 20
    texts: PositiveInt = 256
    characters: PositiveInt = 20_000
    """Of one text."""
    look_characters: PositiveInt = 2_000
    """Of a text to look at: the answer holds every head's weights, which grow with its square."""
    explain_characters: PositiveInt = 500
    """Of a text to explain: it is read again for each of its words."""
    beam: PositiveInt = 16
    results: PositiveInt = 16
    """n-best results, samples or classes of one text."""
    tokens: PositiveInt = 1_024
    """Tokens to generate for one text."""
    interventions: PositiveInt = 64
    json_depth: PositiveInt = 16
    json_values: PositiveInt = 10_000
    """Strings, numbers, lists and objects of a body, beside its texts."""


class ServerSettings(Config):
    """How requests are admitted, limited and logged."""

    limits: RequestLimits = RequestLimits()
    queue: PositiveInt = 1_024
    """Texts that may wait; beyond, requests are answered with 429."""
    deadline: PositiveFloat = 60.0
    """Seconds in which a request must be complete."""
    stuck_after: PositiveFloat = 120.0
    """Seconds without progress after which a busy worker counts as stuck and the server as not ready."""
    drain: NonNegativeFloat = 30.0
    """Seconds that requests in flight have to end when the server is stopped."""
    token: SecretStr | None = Field(default=None, min_length=MIN_TOKEN)
    """What requests must present: `Authorization: Bearer …`, or `api_key` in LibreTranslate's requests."""
    hosts: tuple[str, ...] | None = LOOPBACK_NAMES
    """Values of the Host header that are served, without port; None: any (a token then stops DNS rebinding)."""
    log_file: Path | None = None
    """Access log; None: standard error."""
    log_texts: bool = False
    """Write the requests' texts into the access log."""
    reload_every: NonNegativeFloat = 1.0
    """Seconds between looks at the model folders; 0: a replaced folder is not noticed."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to this address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
