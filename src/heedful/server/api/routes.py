"""All routes of our own interface, under /api/v1."""

from __future__ import annotations

from heedful.server.api import (
    answer_route,
    classify_route,
    embed_route,
    explain_route,
    fill_route,
    generate_route,
    look_route,
    served_models,
    translate_route,
)

API_ROUTERS = tuple(
    module.router
    for module in (
        served_models, translate_route, generate_route, classify_route, fill_route, answer_route, embed_route,
        look_route, explain_route,
    )
)  # fmt: skip
