"""What openapi.json says is so: generated requests never cause an unexpected error, and answers fit their schemas."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

CHECKS = (not_a_server_error, response_schema_conformance, status_code_conformance)
# The server runs in this process: its threads may use `random` while a request is generated.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")
MULTIPART = "/translate_file"


def check_operations(server: Any, examples: int) -> int:
    """Send generated requests to every operation; returns how many were answered."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    answered = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path == MULTIPART:
            continue  # tested with real files

        @seed(0)
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            nonlocal answered
            response = case.call()
            case.validate_response(response, checks=CHECKS)
            answered += 1

        check()
    return answered


def test_generated_requests_cause_no_unexpected_error(server: Any) -> None:
    assert check_operations(server, examples=3) > 45


@pytest.mark.slow
def test_many_generated_requests_cause_no_unexpected_error(server: Any) -> None:
    assert check_operations(server, examples=60) > 700


def test_every_route_documents_its_answer_and_its_errors(server: Any) -> None:
    api = server.get("/openapi.json").json()
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            assert "200" in operation["responses"], path
            if path.startswith(("/api/", "/v1/", "/translate", "/detect", "/languages")):
                assert {"401", "429", "503"} <= operation["responses"].keys(), (path, method)
