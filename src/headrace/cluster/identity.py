"""Ids that are never used again: of clusters and of topics."""

from base64 import urlsafe_b64encode
from random import Random
from typing import Final
from uuid import UUID

from .store import AlreadyExists, Create, MetadataStore

CLUSTER_ID: Final = "/cluster/id"


async def cluster_id(store: MetadataStore, rng: Random) -> str:
    """The id of the cluster whose state is in the store, made and kept there on the first call."""
    stored = await store.get(CLUSTER_ID)
    if stored is None:
        try:
            await store.commit([Create(CLUSTER_ID, _text(new_topic_id(rng)).encode())])
        except AlreadyExists:
            pass
        stored = await store.get(CLUSTER_ID)
    assert stored is not None
    return stored.value.decode()


def new_topic_id(rng: Random) -> UUID:
    """A random id whose text, as Kafka writes it, does not look like an option of a command."""
    while True:
        fresh = UUID(int=rng.getrandbits(128), version=4)
        if not _text(fresh).startswith("-"):
            return fresh


def _text(value: UUID) -> str:
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")
