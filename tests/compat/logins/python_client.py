"""`python -m tests.compat.logins.python_client NAME`: writes records and reads them back, as one login on stdin says.

Ends with code 0 where all came back; else stderr says why not. The other clients of this suite do the same.
"""

import asyncio
import json
import ssl
import sys
import time
from typing import Any, Final

import aiokafka
import kafka
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import Consumer, KafkaException, Producer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

OAUTHBEARER: Final = "OAUTHBEARER"


def by_confluent(login: dict[str, Any]) -> int:
    settings: dict[str, Any] = {
        "bootstrap.servers": login["bootstrap"],
        "security.protocol": login["protocol"],
        "ssl.ca.location": login["ca"],
        "log_level": 0,
    }
    if login["certificate"]:
        settings |= {"ssl.certificate.location": login["certificate"], "ssl.key.location": login["key"]}
    if login["mechanism"] == OAUTHBEARER:
        settings |= {"sasl.mechanism": OAUTHBEARER, "oauth_cb": lambda _: (login["secret"], time.time() + 600)}
    elif login["mechanism"]:
        settings |= {"sasl.mechanism": login["mechanism"]}
        settings |= {"sasl.username": login["user"], "sasl.password": login["secret"]}
    failures: list[str] = []
    timeout = login["timeout_s"]
    producer = Producer({**settings, "message.timeout.ms": int(timeout * 1000)})
    for number in range(login["count"]):
        told = lambda error, _: failures.append(str(error)) if error else None  # noqa: E731
        producer.produce(login["topic"], str(number).encode(), partition=0, on_delivery=told)
        producer.poll(login["pause_ms"] / 1000)
    if producer.flush(timeout + 5) or failures:
        raise KafkaException(*failures[:1])
    consumer = Consumer({**settings, "group.id": login["group"], "auto.offset.reset": "earliest"})
    consumer.subscribe([login["topic"]])
    seen, until = 0, time.monotonic() + 30
    while seen < login["count"] and time.monotonic() < until:
        for message in consumer.consume(100, 0.5):
            if message.error() is not None:
                raise KafkaException(message.error())
            seen += 1
    consumer.close()
    return seen


class PythonToken(PythonTokens):  # type: ignore[misc]  # it has no types
    """The token that was given."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AioToken(AioTokens):  # type: ignore[misc]  # it has no types
    """The token that was given."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _common(login: dict[str, Any], token: Any) -> dict[str, Any]:
    """The settings that kafka-python and aiokafka share."""
    context = ssl.create_default_context(cafile=login["ca"])
    if login["certificate"]:
        context.load_cert_chain(login["certificate"], login["key"])
    settings: dict[str, Any] = {
        "bootstrap_servers": login["bootstrap"],
        "security_protocol": login["protocol"],
        "ssl_context": context,
    }
    if login["mechanism"] == OAUTHBEARER:
        settings |= {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": token(login["secret"])}
    elif login["mechanism"]:
        settings |= {"sasl_mechanism": login["mechanism"]}
        settings |= {"sasl_plain_username": login["user"], "sasl_plain_password": login["secret"]}
    return settings


def by_kafka_python(login: dict[str, Any]) -> int:
    settings, timeout = _common(login, PythonToken), login["timeout_s"]
    milliseconds = int(timeout * 1000)
    producer = kafka.KafkaProducer(**settings, max_block_ms=milliseconds, bootstrap_timeout_ms=milliseconds)
    for number in range(login["count"]):
        producer.send(login["topic"], str(number).encode(), partition=0).get(timeout)
        time.sleep(login["pause_ms"] / 1000)
    producer.close()
    consumer = kafka.KafkaConsumer(
        login["topic"],
        **settings,
        group_id=login["group"],
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    seen = 0
    for _ in consumer:
        seen += 1
        if seen == login["count"]:
            break
    consumer.close()
    return seen


def by_aiokafka(login: dict[str, Any]) -> int:
    async def work() -> int:
        settings, seen = _common(login, AioToken), 0
        async with aiokafka.AIOKafkaProducer(**settings, request_timeout_ms=int(login["timeout_s"] * 1000)) as producer:
            for number in range(login["count"]):
                await producer.send_and_wait(login["topic"], str(number).encode(), partition=0)
                await asyncio.sleep(login["pause_ms"] / 1000)
        consumer = aiokafka.AIOKafkaConsumer(
            login["topic"], **settings, group_id=login["group"], auto_offset_reset="earliest"
        )
        async with consumer:
            while seen < login["count"]:
                await asyncio.wait_for(consumer.getone(), 30)
                seen += 1
        return seen

    return asyncio.run(work())


CLIENTS: Final = {"confluent-kafka": by_confluent, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


def main() -> int:
    login = json.load(sys.stdin)
    try:
        seen = CLIENTS[sys.argv[1]](login)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if seen != login["count"]:
        print(f"{seen} of {login['count']} records came back", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
