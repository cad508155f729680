"""A member with confluent-kafka, in either protocol."""

from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

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


def _settings(order: Order) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": order.bootstrap,
        "group.id": order.group,
        "group.protocol": order.protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
        "max.poll.interval.ms": POLL_INTERVAL_MS,
        "log_level": 2,
    }
    if order.instance:
        settings["group.instance.id"] = order.instance
    if order.protocol == "consumer":
        # The broker tells the rest.
        return settings | ({"group.remote.assignor": order.assignor} if order.assignor else {})
    settings |= {"session.timeout.ms": order.session_ms, "heartbeat.interval.ms": order.heartbeat_ms}
    return settings | ({"partition.assignment.strategy": order.assignor} if order.assignor else {})


def _process(consumer: Consumer, messages: list[Message]) -> None:
    following: dict[tuple[str, int], int] = {}
    for message in messages:
        if message.error() is not None:
            say("trouble", error=str(message.error()))
            continue
        say_record(message.topic(), message.partition(), message.offset(), message.value())
        following[message.topic(), message.partition()] = message.offset() + 1
    if following:
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in following.items()]
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            say("trouble", error=f"commit: {error}")


def main() -> None:
    order = Order.given()
    stop = stop_requested()
    consumer = Consumer(_settings(order))
    consumer.subscribe(
        list(order.topics) if order.regex is None else [f"^{order.regex}$"],
        on_assign=lambda _, partitions: say_partitions("assigned", partitions),
        on_revoke=lambda _, partitions: say_partitions("revoked", partitions),
        on_lost=lambda _, partitions: say_partitions("lost", partitions),
    )
    while not stop.is_set():
        _process(consumer, consumer.consume(num_messages=100, timeout=POLL_SECONDS))
    say("closing")
    consumer.close()


if __name__ == "__main__":
    main()
