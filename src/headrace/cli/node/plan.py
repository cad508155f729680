"""What the workers of a node are: brokers whose numbers, ports and directories follow from those of the first."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.net.address import Address, parse_address

from ..console import bad_input

if TYPE_CHECKING:
    from headrace.config import BrokerConfig, ListenerAddress

MOST_WORKERS: Final = 256
_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One broker of a node: what is set on it alone."""

    broker_id: int
    settings: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"broker {self.broker_id}"

    @property
    def arguments(self) -> list[str]:
        """Of `headrace broker`. The number stands for itself, so that a list of processes tells which is which."""
        words = [f"--set={name}={value}" for name, value in self.settings.items()]
        return ["--id", str(self.broker_id), *words]


def plan_workers(first: "BrokerConfig", workers: int, host_name: str) -> list[Worker]:
    """The workers of a node whose first has these settings; a usage failure where they cannot be.

    Each has the number, the port, the advertised port and that of metrics after those of the one before, and a
    directory of its own in `log.dirs`. The rack of all is `broker.rack` or else the machine's name.
    """
    _refuse_lone(first)
    _refuse_shared_ports(first, workers)
    return list(_workers(first, workers, first["broker.rack"] or host_name))


def _workers(first: "BrokerConfig", workers: int, rack: str) -> Iterator[Worker]:
    for number in range(workers):
        broker_id = first.node_id + number
        settings = {
            "listeners": _listeners(first.listeners, number),
            "advertised.listeners": _listeners(first.advertised_listeners, number),
            "log.dirs": str(Path(first["log.dirs"]) / f"broker-{broker_id}"),
            "broker.rack": rack,
            **_metrics_listener(str(first["headrace.metrics.listener"]), number),
        }
        yield Worker(broker_id=broker_id, settings=settings)


def _listeners(of_first: "Iterable[ListenerAddress]", number: int) -> str:
    return ",".join(str(listener._replace(port=listener.port + number)) for listener in of_first)


def _metrics_listener(text: str, number: int) -> dict[str, str]:
    """Where a worker serves metrics, if that does not follow from its port already."""
    if text in ("auto", "off"):
        return {}
    address = parse_address(text)
    if address.port + number > _LAST_PORT:
        raise bad_input(f"--metrics: {number + 1} workers from port {address.port} on need ports beyond {_LAST_PORT}")
    return {"headrace.metrics.listener": str(Address(address.host, address.port and address.port + number))}


def _refuse_lone(first: "BrokerConfig") -> None:
    if first.lone:
        raise bad_input(
            "the brokers of a node are members of a cluster: name its store with --store zookeeper://H:P,H:P/PATH "
            "(`headrace up` runs one alone)"
        )


def _refuse_shared_ports(first: "BrokerConfig", workers: int) -> None:
    _metrics_listener(str(first["headrace.metrics.listener"]), workers - 1)
    named = [("--listen", each.port) for each in first.listeners]
    named += [("advertised.listeners", each.port) for each in first.advertised_listeners]
    for what, port in named:
        if not port:
            raise bad_input(f"{what}: a node needs a port that stays, as its brokers have this one and those after it")
        if port + workers - 1 > _LAST_PORT:
            raise bad_input(f"{what}: {workers} workers from port {port} on need ports beyond {_LAST_PORT}")
    ports = sorted({each.port for each in first.listeners})
    for lower, higher in pairwise(ports):
        if higher - lower < workers:
            raise bad_input(
                f"--listen: {workers} workers take the ports from {lower} on, and another listener has {higher}; "
                f"let ports be {workers} apart"
            )
