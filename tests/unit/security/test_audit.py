"""The audit log: nothing is lost in silence, nothing in it is secret or can be forged, and a flood is a count."""

import asyncio
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from headrace.protocol.acl import AclOperation, ResourceType
from headrace.security.audit import (
    LONG_WINDOW_SECONDS,
    MOST_LINES,
    MOST_RESOURCES,
    MOST_WINDOWS_BYTES,
    WINDOW_SECONDS,
    AuditedResource,
    AuditEvent,
    AuditKind,
    AuditLevel,
    AuditLog,
    AuditOutcome,
    AuditTarget,
    Queued,
    denial,
    encode,
    login,
)


class Clock:
    now = 1_000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def audit_log(clock: Clock, level: AuditLevel = AuditLevel.ALL, most_bytes: int = 1 << 20) -> AuditLog:
    return AuditLog(broker_id=1, clock=clock, target=AuditTarget.TOPIC, level=level, queued=Queued(most_bytes))


def admin(*names: str, principal: str = "User:root") -> AuditEvent:
    return AuditEvent(
        kind=AuditKind.ADMIN,
        operation="CreateTopics",
        outcome=AuditOutcome.SUCCEEDED,
        principal=principal,
        host="10.0.0.1",
        resources=tuple(AuditedResource(type="Topic", name=name) for name in names),
    )


def refused(name: str = "orders") -> AuditEvent:
    return denial("User:eve", "10.0.0.9", AclOperation.WRITE, ResourceType.TOPIC, name)


def taken(audit: AuditLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.queued.take(1 << 30)]


def test_an_event_says_who_did_what_to_what_and_from_where(clock: Clock) -> None:
    audit = audit_log(clock)
    audit.record(admin("orders"))
    assert taken(audit) == [
        {
            "id": "1-f4240-1",
            "time": "1970-01-01T00:16:40.000Z",
            "broker": 1,
            "kind": "admin",
            "operation": "CreateTopics",
            "outcome": "succeeded",
            "principal": "User:root",
            "host": "10.0.0.1",
            "resources": [{"type": "Topic", "name": "orders"}],
        }
    ]


def test_the_first_refusal_is_told_at_once_and_those_that_repeat_it_as_a_count(clock: Clock) -> None:
    audit = audit_log(clock)
    for _ in range(1_000):
        audit.record(refused())
    assert [event.get("count", 1) for event in taken(audit)] == [1]
    clock.now += WINDOW_SECONDS
    audit.sweep()
    (counted,) = taken(audit)
    assert (counted["count"], counted["since"]) == (999, "1970-01-01T00:16:40.000Z")
    assert audit.recorded[AuditKind.DENIAL] == 1_000


def test_what_the_authorizer_refuses_is_counted_in_the_same_way(clock: Clock) -> None:
    audit = audit_log(clock)
    for _ in range(1_000):
        audit.denied("User:eve", "10.0.0.9", AclOperation.WRITE, ResourceType.TOPIC, "orders")
    audit.denied("User:eve", "10.0.0.9", AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "orders")
    assert audit.recorded[AuditKind.DENIAL] == 1_001
    audit.close()
    told = [(event["operation"], event.get("count", 1)) for event in taken(audit)]
    assert told == [("Write", 1), ("DescribeConfigs", 1), ("Write", 999)]


def test_an_operation_and_a_kind_of_resource_of_one_number_are_told_apart(clock: Clock) -> None:
    audit = audit_log(clock)
    audit.denied("User:eve", "10.0.0.9", AclOperation.READ, ResourceType.GROUP, "billing")
    (event,) = taken(audit)
    assert (event["operation"], event["resources"][0]["type"]) == ("Read", "Group")


def test_what_is_still_counted_is_told_when_the_broker_stops(clock: Clock) -> None:
    audit = audit_log(clock)
    for _ in range(3):
        audit.record(refused())
    audit.close()
    assert [event.get("count", 1) for event in taken(audit)] == [1, 2]


def test_refusals_of_other_resources_stand_for_themselves(clock: Clock) -> None:
    audit = audit_log(clock)
    audit.record(refused("orders"))
    audit.record(refused("payments"))
    assert [event["resources"][0]["name"] for event in taken(audit)] == ["orders", "payments"]


def test_each_action_of_an_administrator_stands_for_itself(clock: Clock) -> None:
    audit = audit_log(clock)
    for _ in range(3):
        audit.record(admin("orders"))
    assert len(taken(audit)) == 3


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        (AuditLevel.DENIALS, ["denial", "login"]),
        (AuditLevel.ADMIN, ["denial", "login", "admin"]),
        (AuditLevel.ALL, ["denial", "login", "admin", "login"]),
    ],
)
def test_a_level_includes_those_before_it(clock: Clock, level: AuditLevel, kinds: list[str]) -> None:
    audit = audit_log(clock, level)
    audit.record(refused())
    audit.record(login("User:eve", "10.0.0.9", "EXTERNAL", "PLAIN", error="wrong password"))
    audit.record(admin("orders"))
    audit.record(login("User:bob", "10.0.0.8", "EXTERNAL", "PLAIN"))
    assert [event["kind"] for event in taken(audit)] == kinds


def test_a_flood_of_refusals_leaves_room_for_administrators(clock: Clock) -> None:
    audit = audit_log(clock, most_bytes=20_000)
    for number in range(1_000):
        audit.record(refused(f"topic-{number}"))
    assert audit.dropped
    audit.record(admin("orders"))
    assert taken(audit)[-1]["operation"] == "CreateTopics"


def test_what_was_dropped_is_counted_logged_and_told_as_an_event(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    audit = audit_log(clock, most_bytes=20_000)
    for number in range(1_000):
        audit.record(refused(f"topic-{number}"))
    audit.sweep()
    audit.sweep()
    dropped = [event for event in taken(audit) if event["kind"] == "audit"]
    assert [event["count"] for event in dropped] == [audit.dropped]
    (line,) = [r.getMessage() for r in caplog.records if "audit events lost" in r.getMessage()]
    assert f"events={audit.dropped}" in line


def test_a_loss_that_has_no_room_either_is_told_once_there_is_some(clock: Clock) -> None:
    audit = audit_log(clock, most_bytes=2_000)
    for _ in range(100):
        audit.record(admin("orders"))
    audit.sweep()
    assert all(event["kind"] == "admin" for event in taken(audit))
    audit.sweep()
    assert [event["count"] for event in taken(audit)] == [audit.dropped]


def test_what_is_about_many_is_told_in_several_events_and_nothing_left_out(clock: Clock) -> None:
    audit = audit_log(clock)
    names = [f"t{number}" for number in range(2 * MOST_RESOURCES + 1)]
    audit.record(admin(*names))
    events = taken(audit)
    assert len(events) == 3
    assert [each["name"] for event in events for each in event["resources"]] == names


def test_no_text_of_a_client_can_forge_a_line_or_reach_a_terminal() -> None:
    line = encode(admin("a\r\nb\x1b[2J\x7f\u202e").to_json("1-1-1", 1, 0))
    assert line.isascii()
    assert line.decode().isprintable()
    assert json.loads(line)["resources"][0]["name"] == "a\r\nb\x1b[2J\x7f\u202e"


def test_a_very_long_name_is_cut_and_says_so(clock: Clock) -> None:
    audit = audit_log(clock)
    audit.record(admin("x" * 30_000, principal="User:" + "y" * 30_000))
    (event,) = taken(audit)
    assert event["principal"].endswith("(30005 characters)")
    assert len(json.dumps(event)) < 3_000


def test_a_flood_that_differs_each_time_writes_few_lines_and_says_how_many_more(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    audit = audit_log(clock)
    for number in range(MOST_LINES + 10):
        audit.record(refused(f"topic-{number}"))
    audit.sweep()
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("event=audit ") for line in lines) == MOST_LINES
    assert any("audit lines left out" in line and "lines=10" in line for line in lines)


def test_the_queue_gives_what_has_room_and_at_least_one() -> None:
    queued = Queued()
    for line in (b"a" * 10, b"b" * 10, b"c" * 10):
        queued.put(line, is_admin=True)
    assert queued.take(20) == [b"a" * 10, b"b" * 10]
    assert queued.take(1) == [b"c" * 10]
    assert (queued.take(1), queued.bytes) == ([], 0)


def test_whoever_waits_for_events_is_woken_by_the_first() -> None:
    async def main() -> list[bytes]:
        queued = Queued()
        waiting = asyncio.ensure_future(queued.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        queued.put(b"{}", is_admin=False)
        await waiting
        return queued.take(100)

    assert asyncio.run(main()) == [b"{}"]


@pytest.fixture(autouse=True)
def _logged() -> None:
    from headrace.testing.broker import log_through_logging

    log_through_logging()


def test_what_clients_call_things_takes_bounded_memory_however_long_it_is(clock: Clock) -> None:
    audit = audit_log(clock)
    tracemalloc.start()
    try:
        for number in range(400):
            audit.record(refused(f"{number}\U0001f600{'x' * 32_000}"))
        assert tracemalloc.get_traced_memory()[0] < 2 * MOST_WINDOWS_BYTES
    finally:
        tracemalloc.stop()
    audit.close()
    assert not audit._weight


def test_what_anybody_may_do_leaves_administrators_their_room(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    audit = audit_log(clock, most_bytes=4_000)
    for number in range(MOST_LINES + 10):
        audit.record(replace(admin(f"group-{number}"), window_seconds=LONG_WINDOW_SECONDS))
    assert sum(record.getMessage().startswith("event=audit ") for record in caplog.records) == MOST_LINES
    audit.record(admin("important"))
    assert taken(audit)[-1]["resources"] == [{"type": "Topic", "name": "important"}]
