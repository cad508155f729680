"""Schedules: their times and records and, against a broker, what is sent."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.client import Admin, ClientError, Consumer, Message, Producer
from headrace.client.delays.mover import GROUP
from headrace.client.delays.schedules import (
    Schedule,
    Schedules,
    ScheduleTable,
    checked,
    encode,
    encode_fired,
)
from headrace.config import PLAIN_USERS
from headrace.testing import Broker
from tests.support.process import free_port
from tests.unit.client.test_delays import moving, received
from tests.unit.gateway.test_credentials import USERS

BERLIN = ZoneInfo("Europe/Berlin")


def ms(*date: int, zone: ZoneInfo | None = None) -> int:
    return int(datetime(*date, tzinfo=zone or UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


def test_times_are_those_of_the_clocks_of_a_time_zone_also_when_these_are_changed() -> None:
    nightly = Schedule(name="nightly", cron="30 2 * * *", time_zone="Europe/Berlin")
    first = nightly.next_ms(ms(2026, 3, 28, 12))
    assert first == ms(2026, 3, 29, 3, zone=BERLIN)  # there is no half past two in this night
    assert first is not None
    assert nightly.next_ms(first) == ms(2026, 3, 30, 2, 30, zone=BERLIN)


def test_what_is_paused_has_no_time_and_what_is_resumed_none_of_before() -> None:
    assert Schedule(name="s", cron="* * * * *", is_paused=True).next_ms(0) is None
    resumed = Schedule(name="s", cron="0 * * * *", since_ms=ms(2026, 1, 1, 10, 30))
    assert resumed.next_ms(ms(2025, 1, 1)) == ms(2026, 1, 1, 11)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Schedule(name="", cron="* * * * *"), "a schedule's name"),
        (Schedule(name="a\nb", cron="* * * * *"), "a schedule's name"),
        (Schedule(name="s", cron="61 * * * *"), "Bad minute"),
        (Schedule(name="s", cron="@daily"), "no cron expression"),
        (Schedule(name="s", cron="* * * * *", time_zone="Mars/Base"), "no time zone 'Mars/Base'"),
        (Schedule(name="s", cron="* * * * *", time_zone="../etc/passwd"), "no time zone"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(schedule: Schedule, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        checked(schedule)


def test_records_make_a_table_in_whatever_order_what_was_sent_is_read_again() -> None:
    table = ScheduleTable()
    schedule = Schedule(
        name="s", id="1", cron="* * * * *", value=b"\xff", key=b"k", headers=(("h", None),), since_ms=ms(2026, 1, 1)
    )
    table.apply(*encode(schedule))
    assert table.schedules == {"s": schedule}
    assert table.next_ms(schedule) == ms(2026, 1, 1, 0, 1)
    for minute in (7, 5):
        table.apply(*encode_fired(schedule, ms(2026, 1, 1, 0, minute)))
    assert table.next_ms(schedule) == ms(2026, 1, 1, 0, 8)
    another = Schedule(name="s", id="2", cron="* * * * *", since_ms=ms(2026, 1, 1))
    table.apply(*encode(another))
    assert table.next_ms(another) == ms(2026, 1, 1, 0, 1)  # how far the one before was is nothing to it
    for key, value in ((b"schedule:s", b"{"), (b"schedule:s", b"[]"), (None, b"x"), (b"\xff", b""), (b"fired:s", b"7")):
        table.apply(key, value)
    assert table.schedules == {"s": another}
    table.apply(b"schedule:s", None)
    assert not table.schedules


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}) as running:
        yield running


def of_tick(broker: Broker, topic: str) -> list[tuple[float, Message[str]]]:
    """The messages of schedule `tick`, up to a time of schedule `after`, in its partition, that is still to come."""
    found: list[tuple[float, Message[str]]] = []
    now_ms = time.time() * 1000
    with Consumer(topic, group=None, bootstrap=broker.bootstrap, value=str) as consumer:
        while (message := consumer.receive(60)) is not None:
            if message.header("headrace.schedule") == "tick":
                found.append((time.time(), message))
            elif int(message.header("headrace.schedule.time") or 0) > now_ms:
                return found
    raise AssertionError("schedule 'after' sends nothing")


@pytest.mark.slow
def test_each_time_is_sent_once_by_whichever_mover_until_it_is_paused(broker: Broker) -> None:
    topic = broker.create_topic("ticks", partitions=2)
    schedules = Schedules(Admin(broker.bootstrap), broker.bootstrap, topic)
    with moving(broker):
        schedules.create(Schedule(name="tick", cron="* * * * * *", value=b"t", key=b"k", headers=(("h", b"1"),)))
        with moving(broker):
            received(broker, topic, 2)
        schedules.pause("tick")
        schedules.create(Schedule(name="after", cron="* * * * * *", value=b"after", key=b"k"))
        count = len(of_tick(broker, topic))  # who sends the one has read that the other is paused
        schedules.run_now("tick")
        found = of_tick(broker, topic)
        assert len(found) == count + 1
    times = [int(message.header("headrace.schedule.time") or 0) for _, message in found[:count]]
    assert len(set(times)) == len(times)
    assert all(later > earlier and not (later - earlier) % 1000 for earlier, later in itertools.pairwise(times))
    assert all(there * 1000 >= at for (there, _), at in zip(found, times, strict=False))
    assert {(m.key, m.value, m.header("h"), m.header("headrace.schedule")) for _, m in found} == {
        (b"k", "t", "1", "tick")
    }


@pytest.mark.slow
def test_a_schedule_that_is_not_there_is_named_also_where_there_never_was_one(broker: Broker) -> None:
    topic = broker.create_topic("without-schedules")
    schedules = Schedules(Admin(broker.bootstrap), broker.bootstrap, topic)
    assert list(schedules) == []
    for ask in (schedules.get, schedules.pause, schedules.resume, schedules.delete, schedules.run_now):
        with pytest.raises(ClientError, match=f"topic '{topic}' has no schedule 'tick'"):
            ask("tick")


@pytest.mark.slow
def test_times_that_pass_while_no_mover_runs_are_made_up_for_by_one_message(broker: Broker) -> None:
    topic = broker.create_topic("missed")
    schedules = Schedules(Admin(broker.bootstrap), broker.bootstrap, topic)
    schedules.create(Schedule(name="tick", cron="* * * * * *", value=b"t"))
    with pytest.raises(ClientError, match="a schedule 'tick' already"):
        schedules.create(Schedule(name="tick", cron="* * * * * *"))
    time.sleep(3)
    with moving(broker):
        times = [int(m.header("headrace.schedule.time") or 0) for _, m in received(broker, topic, 2)]
        schedules.delete("tick")
    assert times[1] - times[0] >= 2000
    assert [each.name for each in schedules] == []
    with Producer(broker.bootstrap) as producer, pytest.raises(ClientError, match="delay them by naming that"):
        producer.send(schedules.topic, "x", deliver_after=1)


@pytest.mark.slow
def test_a_mover_and_who_looks_at_schedules_need_no_more_rights_than_the_page_says() -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        PLAIN_USERS: USERS,
        "authorizer.class.name": "headrace",
        "super.users": "User:gateway",
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as broker:
        root, alice = login("gateway", "own"), login("alice", "s3cret")
        own = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0, **root})

        def allow(kind: ResourceType, name: str, pattern: ResourcePatternType, *operations: AclOperation) -> None:
            for operation in operations:
                acl = AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)
                for done in own.create_acls([acl]).values():
                    done.result(30)

        own.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
        allow(ResourceType.TOPIC, "orders", prefixed, AclOperation.READ)
        schedules = Schedules(Admin(broker.bootstrap, root), broker.bootstrap, "orders", root)
        schedules.create(Schedule(name="tick", cron="* * * * * *", value=b"tick"))
        seen = Schedules(Admin(broker.bootstrap, alice), broker.bootstrap, "orders", alice)
        assert [each.name for each in seen] == ["tick"]
        allow(ResourceType.TOPIC, "orders", prefixed, AclOperation.WRITE, AclOperation.DELETE)
        allow(ResourceType.GROUP, GROUP, literal, AclOperation.READ)
        allow(ResourceType.TRANSACTIONAL_ID, GROUP, prefixed, AclOperation.WRITE, AclOperation.DESCRIBE)
        with Producer(broker.bootstrap, settings=root) as producer:
            producer.deliver("orders", "later", deliver_after=0.3)
        with moving(broker, settings=alice):
            values = {message.value for _, message in received(broker, "orders", 3, settings=root)}
    assert values == {"later", "tick"}


@pytest.mark.slow
def test_a_mover_that_waits_for_its_brokers_ends_when_it_is_told_to() -> None:
    command = [sys.executable, "-m", "headrace.cli", "schedule", "run", "--bootstrap", f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "the topics cannot be listed" in process.stderr.readline()
        process.terminate()
        assert process.wait(60) == 0


def login(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
