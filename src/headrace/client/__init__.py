"""The SDK: what programs use to talk to a cluster.

| | |
|---|---|
| `Producer`, `Consumer`, `Queue`, `Admin` | for programs with threads, or none |
| `AsyncProducer`, `AsyncConsumer`, `AsyncQueue`, `AsyncAdmin` | the same on asyncio |
| `Message`, `Delivered`, `Transaction`, `Format`, `Json` | what they give and take |
| `Rpc` | calls functions over topics |
| `ClientError` and its kinds | what can go wrong |

Brokers' and programs' start is not to wait for librdkafka: names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .admin import Admin
    from .asynchronous import AsyncAdmin, AsyncConsumer, AsyncProducer
    from .consumer import Consumer
    from .errors import (
        ClientError,
        ClusterUnreachable,
        NotDelivered,
        ProducerFenced,
        TransactionAborted,
        Undecodable,
        Unencodable,
        UnknownTopic,
    )
    from .formats import Format, Json
    from .messages import Message, expires_in, message_id
    from .producer import Delivered, Producer, Transaction
    from .queue import AsyncQueue, Queue
    from .replying import NoReply, RemoteError
    from .rpc import Rpc

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncQueue",
    "ClientError",
    "ClusterUnreachable",
    "Consumer",
    "Delivered",
    "Format",
    "Json",
    "Message",
    "NoReply",
    "NotDelivered",
    "Producer",
    "ProducerFenced",
    "Queue",
    "RemoteError",
    "Rpc",
    "Transaction",
    "TransactionAborted",
    "Undecodable",
    "Unencodable",
    "UnknownTopic",
    "expires_in",
    "message_id",
]

_HOMES: Final = {
    "Admin": "admin",
    "AsyncAdmin": "asynchronous",
    "AsyncConsumer": "asynchronous",
    "AsyncProducer": "asynchronous",
    "AsyncQueue": "queue",
    "Consumer": "consumer",
    "Delivered": "producer",
    "Format": "formats",
    "Json": "formats",
    "Message": "messages",
    "NoReply": "replying",
    "Producer": "producer",
    "Queue": "queue",
    "RemoteError": "replying",
    "Rpc": "rpc",
    "Transaction": "producer",
    "expires_in": "messages",
    "message_id": "messages",
}
"""The modules of names that are not in `errors`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
