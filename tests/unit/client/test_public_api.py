"""What programs use of the SDK: everything has types and says what its caller gets. `make types` reads `_program`."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

import headrace.client
import headrace.client.handlers
from headrace.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    AsyncQueue,
    Consumer,
    Delivered,
    Message,
    Producer,
    Queue,
    Rpc,
)
from headrace.client.handlers import App, Outbox, Retry, TestClient
from headrace.registry.formats import Avro


@dataclass
class Order:
    id: int


async def _program() -> None:
    with Producer() as producer, producer.transaction() as transaction:
        assert_type(producer.deliver("orders", Order(1), key="a"), Delivered)
        transaction.send_offsets(Consumer("orders", group="g"))
    for message in Consumer("orders", group="g", value=Order):
        assert_type(message, Message[Order])
        assert_type(message.value, Order)
        assert_type(message.key, bytes | None)
    assert_type(Consumer("orders", group=None).receive(), Message[bytes] | None)
    assert_type(Consumer("orders", group=None, value=dict[str, int]).receive(1.0), Message[dict[str, int]] | None)
    avro = Consumer("orders", group="g", value=Avro(Order, "http://127.0.0.1:8080"))
    assert_type([each.value for each in avro.receive_many(10)], list[Order])
    with Queue("jobs", group="g", value=str, renew_for=60) as queue:
        assert_type(queue.receive(), Message[str] | None)
    async with AsyncProducer() as sender, AsyncConsumer("orders", group="g", value=Order) as consumer:
        assert_type(await sender.deliver("orders", None, key=b"a"), Delivered)
        async for found in consumer:
            assert_type(found, Message[Order])
    async with AsyncQueue("jobs", group="g") as jobs:
        assert_type(await jobs.receive(1.0), Message[bytes] | None)
    async with Rpc() as rpc:
        assert_type(await rpc.call("pricing", 1, reply=Order, timeout=1), Order)
    with Admin() as admin:
        assert_type(admin.partition_numbers("orders"), list[int])

    app = App()

    @app.subscribe("orders", group="g", retry=Retry(on=(ConnectionError,)), dead_letter=True)
    async def handle(order: Order | None, out: Outbox) -> int:
        out.send("seen", order)
        return 1

    assert_type(await handle(Order(1), Outbox()), int)
    async with TestClient(app) as client:
        assert_type(client.messages("seen", Order)[0].value, Order)


def public(package: Any) -> Iterator[tuple[str, Any]]:
    """Classes and functions of a package, and what may be used of the classes."""
    for name in package.__all__:
        value = getattr(package, name)
        if not callable(value) or not hasattr(value, "__module__") or not value.__module__.startswith("headrace"):
            continue  # an alias of a type
        yield name, value
        for member in vars(value) if inspect.isclass(value) else ():
            if not member.startswith("_"):
                found = inspect.getattr_static(value, member)
                found = getattr(found, "__func__", getattr(found, "fget", found))
                if inspect.isfunction(found):
                    yield f"{name}.{member}", found


EVERYTHING = dict([*public(headrace.client), *public(headrace.client.handlers)])
SELF_EVIDENT = {"key", "topic", "partition", "offset", "headers"}
"""Properties of a message whose names say all there is to say."""


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_public_name_says_what_its_caller_gets_and_has_types(name: str) -> None:
    value = EVERYTHING[name]
    is_self_evident = name.startswith("Message.") and name.removeprefix("Message.") in SELF_EVIDENT
    assert inspect.getdoc(value) or is_self_evident
    function = value if inspect.isfunction(value) else value.__init__
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    untyped = [each for each in signature.parameters.values() if each.annotation is each.empty and each.name != "self"]
    assert [each.name for each in untyped if each.name != "cls"] == []
    assert signature.return_annotation is not signature.empty or function.__name__ == "__init__"
