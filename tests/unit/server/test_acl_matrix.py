"""Every API, asked by clients with and without the right that it takes: the table of `tests.support.acls`."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from headrace.protocol.api import PEERS_ONLY, SUPPORTED
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage, checked, decode_message, encode_message
from headrace.server.dispatch import api_name
from headrace.testing import Broker
from tests.support.acls import (
    CLIENTS,
    FREE,
    GROUP,
    ROWS,
    SETTINGS,
    TOPIC,
    Row,
    expected,
    login,
    outcomes,
    prepare,
)
from tests.support.wire import Wire

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wires() -> Iterator[Mapping[str, Wire]]:
    with Broker(SETTINGS) as broker, ExitStack() as stack:
        found = {name: stack.enter_context(login(broker.bootstrap, name)) for name in CLIENTS}
        prepare(found["super"])
        yield found


@pytest.mark.parametrize("row", [row for row in ROWS if row.api in SUPPORTED], ids=str)
def test_only_who_has_the_right_is_served(row: Row, wires: Mapping[str, Wire]) -> None:
    found = outcomes(row, wires)
    assert expected(row, found), found


def test_no_api_is_missing_from_the_table() -> None:
    assert set(map(int, SUPPORTED)) <= {row.api for row in ROWS} | set(FREE)
    assert not {row.api for row in ROWS} & set(FREE)
    assert not set(map(int, PEERS_ONLY)) & {row.api for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_documentation_names_the_right_that_each_api_takes(row: Row) -> None:
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ") and line.count("|") == 4]
    rights = {name.strip(): f"{right} {besides}" for names, right, besides in rows for name in names.split(",")}
    operation, kind, _ = row.right
    words = rights[api_name(row.api)]
    assert operation.name in words
    assert kind.name.lower().replace("_", " ") in words


def own_api(wire: Wire, api: InternalApi) -> None:
    """Ask one of our own APIs that are for clients; `CodedError` for who may not."""
    wire.send_body(
        api,
        0,
        b"".join(
            map(bytes, encode_message(PeerMessage({"to": None, "dry_run": True, "principal": "User:x", "rights": []})))
        ),
    )
    checked(decode_message(memoryview(wire.receive_frame()[4:])))


RIGHTS = {"principal": "User:prefixed", "rights": [[3, 2, TOPIC], [4, 2, TOPIC], [3, 3, GROUP]]}


def test_a_broker_tells_who_may_ask_what_another_may_do(wires: Mapping[str, Wire]) -> None:
    def told(asked: object) -> object:
        body = b"".join(map(bytes, encode_message(PeerMessage(cast(Mapping[str, object], asked)))))
        wires["super"].send_body(InternalApi.DESCRIBE_RIGHTS, 0, body)
        return checked(decode_message(memoryview(wires["super"].receive_frame()[4:]))).values["allowed"]

    assert told({**RIGHTS, "principal": "User:super"}) == [True, True, True]
    assert told({**RIGHTS, "principal": "User:none"}) == [False, False, False]
    assert told({"principal": "User:none", "rights": []}) == []
    for wrong in (
        {},
        {"principal": "User:none", "rights": [[3, 2]]},
        {"principal": "User:none", "rights": [[99, 2, "x"]]},
        {"principal": "User:none", "rights": 5},
        {"principal": "User:none", "rights": [[3, 2, "x"]] * 101},
        {"principal": "x" * 70_000, "rights": []},
    ):
        with pytest.raises(CodedError) as refused:
            told(wrong)
        assert refused.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize("api", [InternalApi.DESCRIBE_HEALTH, InternalApi.DESCRIBE_RIGHTS, InternalApi.UPDATE_LEVEL])
def test_our_own_apis_are_for_those_who_may_describe_or_alter_the_cluster(
    api: InternalApi, wires: Mapping[str, Wire]
) -> None:
    own_api(wires["super"], api)
    with pytest.raises(CodedError) as refused:
        own_api(wires["none"], api)
    assert refused.value.code is ErrorCode.cluster_authorization_failed
