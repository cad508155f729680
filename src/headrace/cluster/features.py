"""The features of the cluster and their levels: what ApiVersions tells, and what UpdateFeatures may ask for.

A feature is at one level in every broker of a release, so that there is nothing to raise or lower: what it stands for
cannot be turned off. Kafka's `metadata.version` and `kraft.version` are levels of its metadata log, which is not here.
"""

from typing import Final, NamedTuple


class Feature(NamedTuple):
    """A feature, and its level."""

    name: str
    level: int
    words: str
    """What the level stands for."""


FEATURES: Final = (
    Feature("eligible.leader.replicas.version", 1, "replicas that left a small ISR may still lead (KIP-966)"),
    Feature("group.version", 1, "groups of the consumer protocol (KIP-848)"),
    Feature("share.version", 2, "share groups (KIP-932) with dead letters (KIP-1191)"),
    Feature("transaction.version", 2, "an epoch for each transaction (KIP-890)"),
)
