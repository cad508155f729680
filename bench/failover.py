"""Ten thousand partitions on three brokers: made, and led again after a kill -9 of a follower and of the controller.

All as a client sees it: in the metadata that a living broker gives. The replicas of a partition are on all three
brokers, so each broker holds ten thousand logs.
"""

import os
import time
from functools import partial
from typing import Any, Final

from .cluster import Asker, BrokerCluster, a_cluster, create_until_done, seconds_until
from .model import Aim, Figure, Of, Sample, Work
from .setting import Setting

PARTITIONS: Final = int(os.environ.get("BENCH_PARTITIONS", "10000"))
"""Fewer of them for those who only try whether it works."""
_OF_A_TOPIC: Final = 1_000
_BROKERS: Final = 3
_MIN_ISR: Final = {"min.insync.replicas": "2"}


def fail_over(setting: Setting) -> Sample:
    """One round: create, kill a broker that is not the controller, let it come back, kill the controller."""
    per_topic = min(_OF_A_TOPIC, PARTITIONS)
    names = [f"many-{n}" for n in range(PARTITIONS // per_topic)]
    with a_cluster(setting, _BROKERS, _MIN_ISR) as cluster:
        before = cluster.resident_mb()
        sample = {
            "create": _create(cluster, names, per_topic),
            "memory": (cluster.resident_mb() - before) * 1e3 / PARTITIONS,
        }
        controller, other = _controller_and_another(cluster)
        sample["led"] = _seconds_to_lead(cluster, other, witness=controller)
        sample["back"] = _seconds_to_return(cluster, other, witness=controller)
        return sample | _take_over(cluster, controller, witness=other)


def _create(cluster: BrokerCluster, names: list[str], partitions: int) -> float:
    """From the request until every broker has opened every log: an answer may come before."""
    start = time.perf_counter()
    create_until_done(cluster, names, partitions=partitions)
    for server in cluster.servers.values():
        with Asker(server) as asker:
            seconds_until("every log is open", partial(_holds_all, asker))
    return time.perf_counter() - start


def _holds_all(asker: Asker) -> bool:
    return asker.logs() >= PARTITIONS


def _controller_and_another(cluster: BrokerCluster) -> tuple[int, int]:
    with Asker(cluster.servers[1]) as asker:
        seconds_until("every replica is in sync", lambda: _all_in_sync(asker.partitions()))
        controller = asker.controller()
    return controller, next(number for number in cluster.servers if number != controller)


def _seconds_to_lead(cluster: BrokerCluster, victim: int, witness: int) -> float:
    with Asker(cluster.servers[witness]) as asker:
        cluster.kill(victim)
        return seconds_until("every partition is led", lambda: _all_led(asker.partitions(), cluster))


def _seconds_to_return(cluster: BrokerCluster, victim: int, witness: int) -> float:
    """From its start until it is in all ISRs again."""
    start = time.perf_counter()
    cluster.start(victim)
    with Asker(cluster.servers[witness]) as asker:
        seconds_until("every replica is in sync", lambda: _all_in_sync(asker.partitions()))
        return time.perf_counter() - start


def _take_over(cluster: BrokerCluster, controller: int, witness: int) -> Sample:
    """Kill the controller: until the next one has made a topic, and until all partitions are led."""
    with Asker(cluster.servers[witness]) as asker:
        cluster.kill(controller)
        start = time.perf_counter()
        create_until_done(cluster, ["after"], replicas=2)
        ready = time.perf_counter() - start
        seconds_until("every partition is led", lambda: _all_led(asker.partitions(), cluster))
        return {"takeover": ready, "takeover_led": time.perf_counter() - start}


def _all_led(partitions: list[Any], cluster: BrokerCluster) -> bool:
    return len(partitions) >= PARTITIONS and all(p.leader_id in cluster.servers for p in partitions)


def _all_in_sync(partitions: list[Any]) -> bool:
    return len(partitions) >= PARTITIONS and all(len(p.isr_nodes) == len(p.replica_nodes) for p in partitions)


def works() -> list[Work]:
    return [
        Work(
            name="failover",
            title=f"{PARTITIONS:,} partitions, three replicas each, on three brokers",
            against="",
            figures=(
                Figure(key="create", label="created", unit="s"),
                Figure(key="memory", label="memory of a replica", unit="KB"),
                Figure(
                    key="led",
                    label="all led again after kill -9",
                    unit="s",
                    aim=Aim(of=Of.VALUE, bound=10, at_least=False),
                ),
                Figure(key="back", label="the killed one back in all ISRs", unit="s"),
                Figure(key="takeover", label="kill -9 of the controller: the next one makes a topic", unit="s"),
                Figure(
                    key="takeover_led",
                    label="kill -9 of the controller: all led again",
                    unit="s",
                    aim=Aim(of=Of.VALUE, bound=10, at_least=False),
                ),
            ),
            broker=fail_over,
            rounds=1,
        )
    ]
