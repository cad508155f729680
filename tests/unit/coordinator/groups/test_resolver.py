"""Topics that match an expression are found some at a time, and once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.coordinator.groups import resolver as module
from headrace.coordinator.groups.resolver import Resolver
from headrace.protocol.patterns import Pattern
from tests.support.coordinator.consumer_group import Host, make_image, put_topic


class Spawned:
    """Work that waits until it is run."""

    def __init__(self) -> None:
        self.work: list[Coroutine[Any, Any, None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.work.append(work)

    def run(self) -> None:
        while self.work:
            asyncio.run(self.work.pop())


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ten names in a turn; the names that were looked at."""
    looked_at: list[str] = []
    matches = Pattern.matches

    def note(self: Pattern, name: str) -> bool:
        looked_at.append(name)
        return matches(self, name)

    monkeypatch.setattr(Pattern, "matches", note)
    monkeypatch.setattr(Pattern, "cost", lambda _, __: module.STEPS_PER_SLICE // 10)
    return looked_at


def test_few_topics_are_found_at_once_and_many_meanwhile(few_at_a_time: list[str]) -> None:
    image = make_image({f"a{number}": 1 for number in range(8)})
    spawned = Spawned()
    resolver = Resolver(image, spawned)
    assert resolver.topics("a[0-3]") == frozenset({"a0", "a1", "a2", "a3"})
    for number in range(100):
        put_topic(image, f"b{number}", 1)
    assert resolver.topics("b1.?") is None
    assert len(few_at_a_time) == 18
    assert resolver.topics("b1.?") is None
    assert len(spawned.work) == 1
    spawned.run()
    assert resolver.topics("b1.?") == frozenset({"b1", *(f"b1{number}" for number in range(10))})


def test_names_that_were_looked_at_are_not_looked_at_again(few_at_a_time: list[str]) -> None:
    image = make_image({"a1": 1, "a2": 1, "b": 1})
    resolver = Resolver(image, Spawned())
    assert resolver.topics("a.*") == frozenset({"a1", "a2"})
    put_topic(image, "a3", 1)
    image.remove_topic("a1")
    assert resolver.topics("a.*") == frozenset({"a2", "a3"})
    put_topic(image, "a1", 1, life=1)
    assert resolver.topics("a.*") == frozenset({"a1", "a2", "a3"})
    assert few_at_a_time == ["a1", "a2", "b", "a3"]


def test_a_group_hears_of_topics_that_took_long_to_find_with_a_later_heartbeat(few_at_a_time: list[str]) -> None:
    del few_at_a_time
    host = Host(make_image({f"a{number}": 1 for number in range(100)}))
    spawned = Spawned()
    host.group._resolver = Resolver(host.image, spawned)
    joined = host.join("m", subscribed_topic_regex="a1.?")
    assert not joined["assignment"]["topic_partitions"]
    spawned.run()
    beat = host.beat("m", joined["member_epoch"])
    assert len(beat["assignment"]["topic_partitions"]) == 11


def test_an_election_is_no_reason_to_look_again(few_at_a_time: list[str]) -> None:
    image = make_image({"a": 2})
    resolver = Resolver(image, Spawned())
    versions = (image.version, image.topics_version)
    assert resolver.topics("a") == frozenset({"a"})
    put_topic(image, "a", 2)
    assert (image.version - versions[0], image.topics_version - versions[1]) == (1, 0)
    assert resolver.topics("a") == frozenset({"a"})
    assert few_at_a_time == ["a"]
