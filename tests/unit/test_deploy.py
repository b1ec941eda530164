"""The files in deploy/ are valid, agree with the command, and run with as few rights as possible."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import heedful
from heedful.cli.app import app
from heedful.cli.commands import GROUPS

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICE = (DEPLOY / "heedful.service").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def check_command(words: list[str]) -> None:
    """Parse `heedful serve …` without running it."""
    assert GROUPS
    command: Any = typer.main.get_command(app)
    command.commands["serve"].make_context("serve", words)


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_image_pins_versions_and_runs_without_root() -> None:
    steps = instructions()
    assert all(re.fullmatch(r"python:\d\.\d+-slim-\w+( AS \w+)?", what) for name, what in steps if name == "FROM")
    user = max(index for index, (name, _) in enumerate(steps) if name == "USER")
    assert steps[user][1] != "root"
    assert not any(name == "RUN" for name, _ in steps[user:])
    assert all(
        "--constraint constraints.txt" in what for what in re.findall(r"pip install.*", DOCKERFILE.replace("\\\n", ""))
    )
    assert not any(name in ("ADD", "MAINTAINER") for name, _ in steps)
    assert "sudo" not in DOCKERFILE
    names = [name for name, _ in steps]
    assert {"HEALTHCHECK", "STOPSIGNAL", "EXPOSE"} <= {*names}


def test_what_the_image_copies_exists() -> None:
    for name, what in instructions():
        if name == "COPY" and "--from" not in what:
            for source in what.split()[:-1]:
                assert (DEPLOY.parent / source).exists(), source


def test_the_image_starts_a_valid_command() -> None:
    entry = next(what for name, what in instructions() if name == "ENTRYPOINT")
    words = yaml.safe_load(entry)
    assert words[1] == "serve"
    check_command([*words[2:], "/models/translate-1"])


def test_the_service_starts_a_valid_command_and_drains() -> None:
    start = re.search(r"^ExecStart=(.*?[^\\])$", SERVICE, re.MULTILINE | re.DOTALL)
    assert start
    words = shlex.split(start[1].replace("\\\n", " "))
    assert words[1] == "serve"
    check_command(words[2:])
    assert int(re.search(r"TimeoutStopSec=(\d+)", SERVICE)[1]) > 30  # type: ignore[index]
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert line in SERVICE.splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    unit = tmp_path / "heedful.service"
    unit.write_text(SERVICE.replace("/opt/heedful/bin/heedful", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    problems = [line for line in done.stderr.splitlines() if "heedful.service" in line and "man-page" not in line]
    assert not problems


def test_the_manifest_probes_drains_and_restricts() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    assert [each["kind"] for each in documents] == ["Deployment", "Service", "PodDisruptionBudget"]
    deployment, service, budget = documents
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"],
                     budget["spec"]["selector"]["matchLabels"]):  # fmt: skip
        assert selector.items() <= labels.items()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")} == {"/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert {*container["resources"]} == {"requests", "limits"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    check_command([*container["args"], "--host", "0.0.0.0"])
    drain = float(container["args"][container["args"].index("--drain") + 1])
    sleep = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + sleep
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}


def test_the_memory_of_a_replica_is_that_of_a_plan() -> None:
    """The process, and the weights of a Transformer-base twice: the manifest says so, and requests as much."""
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    process, weights = map(int, re.search(r"(\d+) MiB \+ 2 × (\d+) MiB", text).groups())  # type: ignore[union-attr]
    assert weights == round(4 * heedful.count_parameters("paper-base").total / 2**20)
    (container,) = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"]
    memory = {kind: container["resources"][kind]["memory"] for kind in ("requests", "limits")}
    assert memory == {"requests": "2Gi", "limits": "3Gi"}
    assert 1.5 * (process + 2 * weights) < 2048
