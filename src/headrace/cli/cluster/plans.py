"""Plans of moves as people and files have them: Kafka's JSON, lists of brokers, amounts of bytes, tables."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.ops.moves import Replicas, replicas_moved
from headrace.protocol.topic_partition import TopicPartition

from ..console import bad_input, say_table
from ..units import amount as amount
from ..units import shown_bytes as shown_bytes


def broker_list(text: str, option: str) -> tuple[int, ...]:
    """`1,2,3` as numbers, each once."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise bad_input(f"{option} '{text}' is not a list of brokers; write their numbers, such as {option} 1,2,3")
    numbers = tuple(int(word) for word in words)
    if len(set(numbers)) != len(numbers):
        raise bad_input(f"{option} '{text}' names a broker twice")
    return numbers


def read_plan(path: Path) -> dict[TopicPartition, Replicas]:
    """A plan in a file, in the format of Kafka's kafka-reassign-partitions."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise bad_input(f"--file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise bad_input(f"--file {path} is not JSON: {error}") from error
    entries = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise bad_input(f'--file {path}: it should read {{"version": 1, "partitions": [{{"topic": …}}]}}')
    plan: dict[TopicPartition, Replicas] = {}
    for number, entry in enumerate(entries, 1):
        key, replicas = _entry(path, number, entry)
        if key in plan:
            raise bad_input(f"--file {path}: topic '{key[0]}' partition {key[1]} is there twice")
        plan[key] = replicas
    return plan


def _entry(path: Path, number: int, entry: Any) -> tuple[TopicPartition, Replicas]:
    try:
        topic, index, replicas = entry["topic"], entry["partition"], entry["replicas"]
    except (KeyError, TypeError):
        raise bad_input(f"--file {path}: entry {number} needs topic, partition and replicas") from None
    if not isinstance(topic, str) or not _is_number(index) or not isinstance(replicas, list):
        raise bad_input(f"--file {path}: entry {number} is not a topic's name, a partition's number and brokers")
    if not replicas or not all(_is_number(r) for r in replicas) or len(set(replicas)) != len(replicas):
        raise bad_input(f"--file {path}: entry {number} needs the numbers of different brokers as replicas")
    return TopicPartition(topic, index), tuple(replicas)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def as_document(plan: Mapping[TopicPartition, Replicas]) -> dict[str, Any]:
    """A plan in the same format, which `--file` and Kafka's own tool take."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": index, "replicas": list(replicas)}
            for (topic, index), replicas in sorted(plan.items())
        ],
    }


def show_plan(
    plan: Mapping[TopicPartition, Replicas],
    current: Mapping[TopicPartition, Replicas],
    sizes: Mapping[TopicPartition, int],
) -> None:
    """Each change with what it copies."""
    say_table(
        ("TOPIC", "PARTITION", "FROM", "TO", "COPIES"),
        [(*key, brokers(current[key]), brokers(plan[key]), _copies(key, plan, current, sizes)) for key in sorted(plan)],
    )


def _copies(
    key: TopicPartition,
    plan: Mapping[TopicPartition, Replicas],
    current: Mapping[TopicPartition, Replicas],
    sizes: Mapping[TopicPartition, int],
) -> str:
    fresh = len(set(plan[key]) - set(current[key]))
    if not fresh:
        return "-" if set(plan[key]) == set(current[key]) else "nothing"
    return shown_bytes(fresh * sizes[key]) if key in sizes else f"{fresh} replicas"


def summary(
    plan: Mapping[TopicPartition, Replicas],
    current: Mapping[TopicPartition, Replicas],
    sizes: Mapping[TopicPartition, int],
) -> str:
    """A plan in one line."""
    copied = sum(len(set(r) - set(current[key])) * sizes.get(key, 0) for key, r in plan.items())
    led = sum(replicas[0] != current[key][0] for key, replicas in plan.items())
    return (
        f"{len(plan)} partitions change: {replicas_moved(current, plan)} replicas are copied "
        f"({shown_bytes(copied)}), {led} get another preferred leader"
    )


def brokers(numbers: Iterable[int]) -> str:
    """Brokers as they are typed."""
    return ",".join(map(str, numbers)) or "-"
