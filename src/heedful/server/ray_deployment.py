"""The same application under Ray Serve, with replicas on several machines (`pip install heedful[ray]`).

from ray import serve
from heedful.server.ray_deployment import ray_application

serve.run(ray_application(["/models/translate-1"], replicas=8))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve

from heedful.server.application import create_app
from heedful.server.language_pairs import LanguagePair
from heedful.server.server_settings import ServerSettings

WAITING_REQUESTS = 256
"""Requests that one replica takes at once; its engine batches them, and its own queue refuses what is too much."""


def ray_application(
    models: Sequence[str | Path],
    settings: ServerSettings | None = None,
    *,
    replicas: int = 2,
    cpus: float = 1.0,
    gpus: float = 0.0,
    int8: bool = False,
    languages: Mapping[str, LanguagePair] | None = None,
    **options: Any,
) -> serve.Application:
    """An application of Ray Serve: each replica loads the models and serves them as `heedful serve` does.

    The folders must be readable on every machine. Requests are spread over the replicas, and one whose replica dies is
    lost: clients repeat it. `settings`: by default any Host is served, because Ray's proxies stand in front; give a
    token where others can reach them. `options`: of `serve.deployment`, such as `autoscaling_config`.
    """
    folders = [str(Path(folder).resolve()) for folder in models]
    chosen = settings or ServerSettings(hosts=None)

    def build() -> FastAPI:
        return create_app(
            folders, chosen, device="cuda" if gpus else "cpu", int8=int8, languages=languages, notice=print
        )

    class HeedfulReplica:
        """One copy of the application."""

    replica: Any = serve.ingress(build)(HeedfulReplica)
    deployment = serve.deployment(
        name="heedful",
        num_replicas=replicas,
        max_ongoing_requests=WAITING_REQUESTS,
        graceful_shutdown_timeout_s=chosen.drain,
        health_check_period_s=2.0,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        **options,
    )(replica)
    application: serve.Application = deployment.bind()
    return application
