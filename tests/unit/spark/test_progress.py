"""A query's progress in a consumer group."""

import logging

import pytest

from headrace.client.columnar.model import TopicPartition
from headrace.client.errors import ClientError
from headrace.spark.source.group_progress import GroupProgress
from headrace.spark.source.offsets import Offsets
from tests.support.spark.logs import FakeClock

A = TopicPartition("t", 0)


class Group:
    def __init__(self) -> None:
        self.commits: list[tuple[str, Offsets]] = []
        self.error: ClientError | None = None
        self.tries = 0

    def commit(self, group: str, offsets: Offsets) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.commits.append((group, offsets))


def test_each_point_is_committed_once() -> None:
    group = Group()
    progress = GroupProgress("g", group.commit)
    for offset in (3, 3, 3, 5, 5):
        progress.finished({A: offset})
    assert group.commits == [("g", {A: 3}), ("g", {A: 5})]


def test_nothing_is_committed_where_nothing_is_read() -> None:
    group = Group()
    GroupProgress("g", group.commit).finished({})
    assert group.tries == 0


def test_a_commit_that_fails_does_not_fail_the_query_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, clock = Group(), FakeClock()
    group.error = ClientError("group 'g' has members")
    progress = GroupProgress("g", group.commit, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            progress.finished({A: 3})
    assert "group 'g' has members" in caplog.text
    assert group.tries == 1
    group.error = None
    clock.now += 60
    progress.finished({A: 3})
    assert group.commits == [("g", {A: 3})]
