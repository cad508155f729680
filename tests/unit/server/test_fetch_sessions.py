"""A fetch session remembers what a client asked for and tells it only what is new."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.fetch import FetchedPartition
from headrace.server.handlers.fetch_sessions import EVICTION_SECONDS, FetchSessions


def request(session: int, epoch: int, wanted: dict[int, int] | None = None, forgotten: tuple[int, ...] = ()) -> Any:
    partitions = [
        SimpleNamespace(partition=p, fetch_offset=offset, partition_max_bytes=100)
        for p, offset in (wanted or {}).items()
    ]
    topics = [SimpleNamespace(topic="t", partitions=partitions)] if partitions else []
    gone = [SimpleNamespace(topic="t", partitions=forgotten)] if forgotten else []
    return SimpleNamespace(session_id=session, session_epoch=epoch, topics=topics, forgotten_topics_data=gone)


def sessions(slots: int = 2) -> FetchSessions:
    ids = itertools.count(100)
    return FetchSessions(slots, lambda: next(ids))


def asked(view: Any) -> dict[int, int]:
    return {interest.partition: interest.offset for interest in view.interests}


def test_a_client_without_a_session_is_told_everything() -> None:
    view = sessions().view(request(0, -1, {0: 5}), 12, 0.0)
    assert view.session_id == 0
    assert view.tells(view.interests[0], FetchedPartition(0, 0, 5, 5, 0))
    assert view.tells(view.interests[0], FetchedPartition(0, 0, 5, 5, 0))


def test_later_requests_name_only_what_changed() -> None:
    cache = sessions()
    first = cache.view(request(0, 0, {0: 5, 1: 6}), 12, 0.0)
    assert asked(cache.view(request(first.session_id, 1), 12, 0.0)) == {0: 5, 1: 6}
    assert asked(cache.view(request(first.session_id, 2, {1: 9}, forgotten=(0,)), 12, 0.0)) == {1: 9}


def test_a_session_without_partitions_ends() -> None:
    cache = sessions()
    first = cache.view(request(0, 0, {0: 5}), 12, 0.0)
    assert cache.view(request(first.session_id, 1, forgotten=(0,)), 12, 0.0).session_id == 0
    assert len(cache) == 0


def test_later_answers_hold_only_what_is_new() -> None:
    cache = sessions()
    first = cache.view(request(0, 0, {0: 5}), 12, 0.0)
    quiet = FetchedPartition(0, 0, 5, 5, 0)
    assert first.tells(first.interests[0], quiet)
    second = cache.view(request(first.session_id, 1), 12, 0.0)
    assert not second.tells(second.interests[0], quiet)
    assert second.tells(second.interests[0], quiet._replace(high_watermark=6))
    assert second.tells(second.interests[0], FetchedPartition(0, ErrorCode.offset_out_of_range.value))


@pytest.mark.parametrize(
    ("session", "epoch", "version", "code"),
    [
        (999, 1, 12, ErrorCode.fetch_session_id_not_found),
        (100, 7, 12, ErrorCode.invalid_fetch_session_epoch),
        (100, 1, 13, ErrorCode.fetch_session_topic_id_error),
    ],
)
def test_a_request_outside_its_session_is_refused(session: int, epoch: int, version: int, code: ErrorCode) -> None:
    cache = sessions()
    cache.view(request(0, 0, {0: 5}), 12, 0.0)
    with pytest.raises(CodedError) as refusal:
        cache.view(request(session, epoch), version, 0.0)
    assert refusal.value.code is code


def test_a_full_cache_gives_no_session_until_one_went_quiet() -> None:
    cache = sessions(slots=1)
    cache.view(request(0, 0, {0: 5}), 12, 0.0)
    assert cache.view(request(0, 0, {0: 5}), 12, 1.0).session_id == 0
    assert cache.view(request(0, 0, {0: 5}), 12, EVICTION_SECONDS + 1).session_id != 0
    assert len(cache) == 1


def test_the_final_epoch_ends_the_session() -> None:
    cache = sessions()
    first = cache.view(request(0, 0, {0: 5}), 12, 0.0)
    cache.view(request(first.session_id, -1, {0: 5}), 12, 0.0)
    assert len(cache) == 0
