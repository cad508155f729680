"""Settings of Kafka's quorum of controllers: what they come to here, where ZooKeeper keeps the state of a cluster."""

from collections.abc import Mapping
from typing import Final

_ROLES: Final = "process.roles"
_QUORUM: Final = ("controller.quorum.voters", "controller.quorum.bootstrap.servers")
_INSTEAD: Final = (
    "brokers of a cluster find each other through ZooKeeper here: set zookeeper.connect=HOST:2181,HOST:2181,HOST:2181 "
    "on all of them, or leave it out to run a lone broker"
)


def quorum_problem(given: Mapping[str, str]) -> str:
    """Why settings that were made for a cluster with KRaft cannot be run as they are; empty where they can.

    One node that is broker and controller is a lone broker. Several would each be alone without a word, and clients
    would see as many clusters.
    """
    roles = _items(given.get(_ROLES, ""))
    if roles and "broker" not in roles:
        return (
            f"{_ROLES}={given[_ROLES]} makes a node that is only a controller. Here every broker can be it: leave "
            "this node out"
        )
    if given.get("zookeeper.connect"):
        return ""
    for name in _QUORUM:
        controllers = _items(given.get(name, ""))
        if len(controllers) > 1:
            return f"{name} names {len(controllers)} controllers; {_INSTEAD}"
    if roles and "controller" not in roles:
        return f"{_ROLES}={given[_ROLES]} leaves the work of controllers to others; {_INSTEAD}"
    return ""


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
