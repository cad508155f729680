"""What a run consists of: drawn from its seed, a different part of all that there is each time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from headrace.protocol.api import ApiKey

FAULTS: Final = {
    "kill": 10,
    "power loss": 8,
    "site power loss": 3,
    "full restart": 3,
    "kill on answer": 6,
    "pause": 7,
    "stop": 5,
    "rolling restart": 3,
    "cut": 10,
    "cut one way": 8,
    "slow link": 8,
    "hold": 10,
    "lose answer": 6,
    "store cut": 8,
    "store expiry": 6,
    "store link": 4,
    "store answer": 6,
    "store commits": 5,
    "store quorum": 3,
    "lagging feed": 8,
    "disk error": 6,
    "disk full": 5,
    "descriptors": 4,
    "lost directory": 4,
    "lost disk": 3,
    "bit rot": 3,
    "clock": 4,
    "store set back": 3,
    "late commit": 6,
    "task failure": 10,
}
"""Kinds of faults, and how often each comes among those that a run has."""

WORK: Final = (
    "idempotent",
    "plain",
    "acks=1",
    "acks=0",
    "transactions",
    "copier",
    "group",
    "nearby",
    "topics",
    "partitions",
    "delete records",
    "compaction",
    "retention",
    "reassignment",
    "large batches",
    "pipelined",
)
"""Kinds of work; readers of both isolation levels are always there. `zombies`, which is not drawn: transactional
producers that were taken for dead and go on."""
DRAWN_APART: Final = ("flush setting", "renumbering", "share", "rewind")
"""Kinds of work that came later; drawn so that earlier seeds stay what they were. `renumbering`: an idempotent producer
that does as librdkafka. `share`: members of a share group, which has dead letters. `rewind`:
an operator has it begin anew now and then, where its members stay away for that."""

HELD_BACK: frozenset[str] = frozenset({"late commit", "task failure"})
"""Faults that are not drawn by themselves, only when they are asked for."""


@dataclass(slots=True, kw_only=True)
class Mix:
    """One run's choice."""

    seed: int
    brokers: int
    faults: dict[str, float]
    """Kinds of faults and their weights."""
    work: frozenset[str]
    rounds: int
    """How many faults happen."""
    pace: float
    """Seconds between two faults, on average."""
    busy: float
    """Seconds between two requests of a client, on average."""
    much_work: int = 80
    """Requests after which a client goes slowly, so that long runs stay cheap."""
    min_isr: int
    replicas: int
    partitions: int
    is_durable: bool
    """Whether topics sync before they acknowledge."""
    flush_ms: int | None
    segment_bytes: int
    feed_page: int
    """Topics that the controller's feed sends at once."""
    latency: float
    """Seconds that every frame takes more, each way."""
    operator_pace: float | None = None
    """Seconds between two acts of an operator, at most; three times the pace of faults where it is not given."""
    pause_seconds: tuple[float, float] | None = None
    """How long machines are stopped that are; until a repair hits them where it is not given."""
    new_producers: float = 0.04
    """How often an idempotent producer begins anew, with another producer id, before it sends."""
    settings: dict[str, str] = field(default_factory=dict)
    answers: tuple[ApiKey, ...] = ()
    """Answers at whose moment machines die; empty for all that the work gets."""
    all_die: float = 0.4
    """How often it is all of them."""

    def does(self, work: str) -> bool:
        return work in self.work

    def describe(self) -> str:
        faults = ", ".join(sorted(self.faults))
        return (
            f"{self.brokers} brokers, {self.replicas} replicas, min ISR {self.min_isr}, {self.partitions} partitions, "
            f"{'synced' if self.is_durable else 'not synced'}, latency {self.latency * 1000:g} ms; "
            f"work: {', '.join(sorted(self.work))}; {self.rounds} faults of: {faults or 'none'}"
        )


def draw(
    seed: int,
    *,
    faults: frozenset[str] | None = None,
    work: frozenset[str] = frozenset(),
    given: Mapping[str, Any] | None = None,
) -> Mix:
    """The mix of a seed; faults and work of these kinds alone where they are named, and what is given."""
    mix = _draw(seed, faults)
    mix.work = work or mix.work
    found = dict(given or {})
    return replace(mix, **{**found, "settings": {**mix.settings, **found.get("settings", {})}})


def _draw(seed: int, only: frozenset[str] | None) -> Mix:
    rng = Random(f"mix {seed}")
    brokers = rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
    replicas = min(brokers, rng.choice((1, 2, 3, 3, 3)))
    min_isr = min(replicas, rng.choice((1, 2, 2, 2)))
    faults = _some_faults(rng, brokers)
    rounds = rng.choice((0, 8, 12, 16, 20, 25))
    if only is not None:
        faults = {kind: float(FAULTS[kind]) for kind in FAULTS if kind in only}
        rounds = max(rounds, 8)
    work = _some_work(rng) | _later_work(seed)
    return Mix(
        seed=seed,
        brokers=brokers,
        faults=faults,
        work=work,
        rounds=rounds if faults else 0,
        pace=rng.choice((0.3, 1.0, 2.0, 3.0)),
        busy=rng.choice((0.05, 0.1, 0.3, 1.0)),
        min_isr=min_isr,
        replicas=replicas,
        partitions=rng.choice((1, 1, 2, 3)),
        is_durable=rng.random() < 0.3,
        flush_ms=rng.choice((None, None, 500, 3000)),
        segment_bytes=rng.choice((600, 2_000, 10_000, 1 << 20)),
        feed_page=rng.choice((1, 2, 2000)),
        latency=rng.choice((0.0, 0.0, 0.0, 0.005, 0.02)),
        settings=_some_settings(rng),
    )


def _some_faults(rng: Random, brokers: int) -> dict[str, float]:
    share = rng.choice((0.0, 0.15, 0.3, 0.3, 0.5))
    kinds = [kind for kind in FAULTS if kind not in HELD_BACK]
    chosen = [kind for kind in kinds if rng.random() < share]
    if brokers == 1:
        chosen = [kind for kind in chosen if kind not in ("lost directory", "lost disk", "bit rot")]
    return {kind: FAULTS[kind] * rng.choice((0.5, 1.0, 1.0, 3.0)) for kind in chosen}


def _some_work(rng: Random) -> frozenset[str]:
    chosen = {kind for kind in WORK if rng.random() < 0.4}
    if not chosen & {"idempotent", "plain", "transactions"}:
        chosen.add("idempotent")
    return frozenset(chosen)


def _later_work(seed: int) -> frozenset[str]:
    return frozenset(kind for kind in DRAWN_APART if Random(f"{kind} {seed}").random() < 0.2)


def _some_settings(rng: Random) -> dict[str, str]:
    return {
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("1000", "5000", "60000")),
        "log.retention.check.interval.ms": "3000",
        "log.cleaner.backoff.ms": "2000",
        "log.segment.delete.delay.ms": rng.choice(("0", "1000", "60000")),
        "log.index.interval.bytes": rng.choice(("0", "200", "4096")),
        "replica.lag.time.max.ms": rng.choice(("1000", "2000", "10000")),
        "replica.fetch.response.max.bytes": rng.choice(("1024", "10485760")),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "group.consumer.min.session.timeout.ms": "3000",
        "group.consumer.session.timeout.ms": "5000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "1000",
        "offsets.topic.segment.bytes": rng.choice(("1000", "104857600")),
        "transaction.state.log.segment.bytes": rng.choice(("1000", "104857600")),
    }
