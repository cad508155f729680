"""Every client of schema registries against a gateway of ours, and the bytes that they write compared."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.support.gateways import GatewayProcess

from ..model import NotOffered
from ..provision import Unavailable, go_program, node_with
from ..runner import Outcome, Status, attempt

SCENARIOS: Final = {
    "avro": "Avro, registered, written and read",
    "json": "JSON Schema, registered, written and read",
    "protobuf": "Protobuf, registered, written and read",
    "references": "references followed",
    "incompatible": "an incompatible schema refused",
    "deletions": "subjects deleted softly and for good",
    "context": "a context by its base path",
    "shared": "the same bytes from every client",
}
_SECONDS: Final = 120.0
_HERE: Final = Path(__file__).parent
_NODE_PACKAGES: Final = ("@kafkajs/confluent-schema-registry@3.9.0",)


@dataclass(slots=True, kw_only=True)
class RegistryResult:
    """What was seen of one client; `unavailable` tells why it could not be tried."""

    name: str
    unavailable: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By the titles of scenarios."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A client's program: told the URL and a name of its own, it says line by line what came of each scenario."""

    command: Sequence[str]
    environment: Mapping[str, str]


def _confluent(_cache: Path) -> _Program:
    return _Program((sys.executable, "-m", "tests.compat.registries.driver"), {})


def _kafkajs(cache: Path) -> _Program:
    node, environment = node_with(cache, "kafkajs-registry", _NODE_PACKAGES)
    return _Program((node, str(_HERE / "driver.js")), environment)


def _franz_go(cache: Path) -> _Program:
    return _Program((str(go_program(cache, _HERE / "go")),), {})


CLIENTS: Final[Mapping[str, Callable[[Path], _Program]]] = {
    "confluent-kafka": _confluent,
    "@kafkajs/confluent-schema-registry": _kafkajs,
    "franz-go sr": _franz_go,
}


def run_registries(bootstrap: str, work: Path, cache: Path, say: Callable[[str], None]) -> list[RegistryResult]:
    """Every scenario of every client; `say` is told what fails."""
    results, written = [], dict[str, str]()
    with GatewayProcess(bootstrap, work / "registry-gateway.log") as gateway:
        for number, (name, prepare) in enumerate(CLIENTS.items()):
            say(f"registry, {name}: setting up")
            result = RegistryResult(name=name)
            results.append(result)
            try:
                said = _said(prepare(cache), gateway.url, f"c{number}")
            except Unavailable as reason:
                result.unavailable = str(reason)
                say(f"registry, {name}: not run: {reason}")
                continue
            written[name] = said.get("shared", {}).get("data", "")
            for scenario, title in SCENARIOS.items():
                question = partial(_answered, scenario, said.get(scenario), set(written.values()))
                outcome = result.outcomes[title] = attempt(question)
                if outcome.status is Status.FAILED:
                    say(f"registry, {name}: {title}: {outcome.note}")
    return results


def _said(program: _Program, url: str, prefix: str) -> dict[str, Any]:
    command = [*program.command, url, prefix]
    environment = {**os.environ, **program.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        lines.append({"name": "shared", "error": done.stderr.strip()[-300:]})
    return {str(line["name"]): line for line in lines}


def _answered(scenario: str, line: Mapping[str, Any] | None, written: set[str]) -> None:
    if line is None:
        raise NotOffered("the client has no way to do this")
    assert not line.get("error"), line["error"]
    if scenario == "shared":
        assert len(written) == 1, f"clients wrote different bytes: {sorted(written)}"
