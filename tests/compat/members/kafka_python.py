"""A member with kafka-python.

It polls for long: a join that a changed subscription began, and that the end of a poll interrupts, is never completed
by kafka-python 3.0 (the next poll sees nothing to rejoin for, and the assignment stays with the unfinished task).
"""

from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from .common import (
    FETCH_WAIT_MS,
    METADATA_AGE_MS,
    POLL_INTERVAL_MS,
    Order,
    say,
    say_partitions,
    say_record,
    stop_requested,
)

_POLL_MS = 3000


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # untyped library
    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        say_partitions("assigned", assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        say_partitions("revoked", revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        say_partitions("lost", lost)


def _consumer(order: Order) -> KafkaConsumer:
    more: dict[str, Any] = {}
    if order.instance:
        more["group_instance_id"] = order.instance
    if order.assignor == "cooperative-sticky":
        more["partition_assignment_strategy"] = [CooperativeStickyAssignor]
    return KafkaConsumer(
        bootstrap_servers=order.bootstrap,
        group_id=order.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=FETCH_WAIT_MS,
        metadata_max_age_ms=METADATA_AGE_MS,
        session_timeout_ms=order.session_ms,
        heartbeat_interval_ms=order.heartbeat_ms,
        max_poll_interval_ms=POLL_INTERVAL_MS,
        reconnect_backoff_max_ms=1000,
        **more,
    )


def _poll(consumer: KafkaConsumer) -> None:
    following = {}
    for place, batch in consumer.poll(timeout_ms=_POLL_MS).items():
        for message in batch:
            say_record(message.topic, message.partition, message.offset, message.value)
            following[place] = OffsetAndMetadata(message.offset + 1, "", -1)
    if following:
        consumer.commit(following)


def main() -> None:
    order = Order.given()
    stop = stop_requested()
    consumer = _consumer(order)
    if order.regex is None:
        consumer.subscribe(topics=list(order.topics), listener=_Listener())
    else:
        consumer.subscribe(pattern=f"^{order.regex}$", listener=_Listener())
    while not stop.is_set():
        try:
            _poll(consumer)
        except KafkaError as error:
            say("trouble", error=repr(error))
    say("closing")
    consumer.close()


if __name__ == "__main__":
    main()
