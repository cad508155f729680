"""Ids that are never used again: of clusters and of topics."""

from base64 import urlsafe_b64encode
from random import Random
from typing import Final
from uuid import UUID

from headrace.protocol.levels import SUPPORTED

from .feature_level import LEVEL, encode_level
from .store import AlreadyExists, Create, MetadataStore, StoreError

CLUSTER_ID: Final = "/cluster/id"


class WrongCluster(StoreError):
    """The store is not of the cluster that this broker belongs to."""


async def cluster_id(
    store: MetadataStore, rng: Random, mine: str | None = None, *, newest_level: int = SUPPORTED.max
) -> str:
    """The id of the cluster whose state is in the store. A store without one is given a new one, and a feature level,
    but not by a broker that is of a cluster already (`mine`): `WrongCluster`.
    """
    stored = await store.get(CLUSTER_ID)
    if stored is None:
        if mine:
            raise _wrong_cluster(mine, None)
        try:
            level = Create(LEVEL, encode_level(newest_level))
            await store.commit([Create(CLUSTER_ID, _text(new_topic_id(rng)).encode()), level])
        except AlreadyExists:
            pass
        stored = await store.get(CLUSTER_ID)
    assert stored is not None
    return stored.value.decode()


async def check_cluster(store: MetadataStore, mine: str) -> None:
    """`WrongCluster` for a store that has lost everything, or is another cluster's."""
    stored = await store.get(CLUSTER_ID)
    found = None if stored is None else stored.value.decode()
    if found != mine:
        raise _wrong_cluster(mine, found)


def _wrong_cluster(mine: str, found: str | None) -> WrongCluster:
    return WrongCluster(
        f"this broker is of cluster {mine}, and the metadata store of "
        f"{'none: it has lost everything' if found is None else f'cluster {found}'}; put the store back "
        "(where there is no copy of it, see docs/operations.md)"
    )


def new_topic_id(rng: Random) -> UUID:
    """A random id whose text, as Kafka writes it, does not look like an option of a command."""
    while True:
        fresh = UUID(int=rng.getrandbits(128), version=4)
        if not _text(fresh).startswith("-"):
            return fresh


def _text(value: UUID) -> str:
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")
