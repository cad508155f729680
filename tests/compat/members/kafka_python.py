"""A member with kafka-python."""

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
    POLL_SECONDS,
    Order,
    say,
    say_partitions,
    say_record,
    stop_requested,
)


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
    for place, batch in consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)).items():
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
