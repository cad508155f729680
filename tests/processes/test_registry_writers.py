"""Four gateways, each a process of its own, write one schema registry at once."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways import GatewayProcess
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.long
WRITERS = 4
SCHEMAS = 1000
SUBJECTS = 50


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "data", {}, log=tmp_path / "broker.log"))
        yield [
            stack.enter_context(GatewayProcess(broker.bootstrap, tmp_path / f"gateway-{i}.log")) for i in range(WRITERS)
        ]


def ask(gateway: GatewayProcess, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(gateway.url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def register(gateway: GatewayProcess, number: int) -> int:
    """The id of a schema, which is asked for until the gateway is there to answer."""
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    while True:
        try:
            return int(ask(gateway, f"/subjects/s{number % SUBJECTS}/versions", {"schema": schema})["id"])
        except (urllib.error.URLError, ConnectionError):
            assert gateway.url


def test_a_thousand_schemas_of_four_processes_have_dense_ids_that_are_equal_everywhere(
    gateways: list[GatewayProcess],
) -> None:
    """Every schema is registered by two of them, and one of them is killed meanwhile."""
    some_are_in = threading.Event()

    def write(which: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for number in range(SCHEMAS):
            if number % WRITERS in (which, (which + 1) % WRITERS):
                found[number] = register(gateways[which], number)
            if len(found) == SCHEMAS // 10:
                some_are_in.set()
        return found

    with ThreadPoolExecutor(WRITERS) as threads:
        writing = [threads.submit(write, which) for which in range(WRITERS)]
        assert some_are_in.wait(120)
        gateways[0].kill()
        gateways[0].start()
        found = [each.result(600) for each in writing]
    ids = {number: {each[number] for each in found if number in each} for number in range(SCHEMAS)}
    assert all(len(each) == 1 for each in ids.values())
    assert sorted(next(iter(each)) for each in ids.values()) == list(range(1, SCHEMAS + 1))
    listed = [ask(gateway, "/schemas?subjectPrefix=%3A*%3A") for gateway in gateways]
    assert len(listed[0]) == SCHEMAS
    assert all(each == listed[0] for each in listed)
    gateways[1].kill()
    gateways[1].start()
    assert ask(gateways[1], "/schemas?subjectPrefix=%3A*%3A") == listed[0]
