"""The OpenAPI document against the gateway that it describes: no answer that it does not know, and so no 500."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_gateway import ask
from tests.support.gateways import GatewayProcess
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.slow

CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance"
_STREAM = "/api/v1/topics/{topic}/stream"


def bounded(spec: dict[str, Any], cluster_id: str) -> dict[str, Any]:
    """The document without the stream, which does not end, with small topics, short waits, and URLs that are no longer
    than the server below takes at all."""
    paths = spec["paths"]
    del paths[_STREAM]
    for path, method in (("/api/v1/topics", "post"), ("/api/v1/topics/{topic}", "patch")):
        body = paths[path][method]["requestBody"]["content"]["application/json"]["schema"]
        component = spec["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        component["properties"]["partitions"]["maximum"] = 3
    for name in ("TopicToCreate", "PartitionCount"):
        count = spec["components"]["schemas"][name]["properties"]["partitions_count"]
        next(each for each in count.get("anyOf", [count]) if each["type"] == "integer")["maximum"] = 3
    for methods in paths.values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["name"] in ("wait_ms", "timeout_ms", "timeout"):
                    parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": 50}
                    parameter["required"] = True
                elif parameter["name"] == "cluster_id":
                    parameter["schema"] = {"type": "string", "enum": [cluster_id]}
                elif parameter["in"] in ("path", "query") and parameter["schema"].get("type") == "string":
                    parameter["schema"]["maxLength"] = min(parameter["schema"].get("maxLength", 300), 300)
    return spec


@pytest.mark.long
def test_no_answer_is_undocumented(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    with (
        BrokerProcess(
            tmp_path / "data", {"group.initial.rebalance.delay.ms": "0"}, log=tmp_path / "broker.log"
        ) as broker,
        GatewayProcess(broker.bootstrap, tmp_path / "gateway.log") as gateway,
    ):
        assert ask(gateway.url, "POST", "/api/v1/topics", {"name": "orders"})[0] == 201
        cluster_id = ask(gateway.url, "GET", "/api/v1/cluster")[1]["cluster_id"]
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(bounded(ask(gateway.url, "GET", "/openapi.json")[1], cluster_id)))
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", gateway.url]
        options = [
            "--checks",
            CHECKS,
            "-n",
            "2",
            "--request-timeout",
            "60",
            "--phases",
            "coverage,fuzzing",
            "--seed",
            "1",
            "--no-color",
        ]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout
        assert "Traceback" not in (tmp_path / "gateway.log").read_text()
