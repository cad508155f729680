"""AlterPartition requests: proposes the ISRs that leaders here have decided on to the controller.

Requests are collected for a moment and sent together, one after another and numbered, so that one that was given up
cannot be granted after a later one was answered. Until it is certain what became of a request the partition counts with
the larger ISR (see `followers`), and it is certain in two cases only:

-   the answer is a state: that is the ISR now;
-   the answer is INELIGIBLE_REPLICA: the state is the one the leader knows, and stays so.

When the controller cannot be reached, or is no controller any more, the same is asked again, for the same
registrations: who has come anew since may hold less. After any other refusal this leader knows less than the
controller: a newer state is on its way, and will settle it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import structlog

from headrace.cluster.alter_partition import AlteredPartition, AlterPartitionResult
from headrace.protocol.errors import CodedError, ErrorCode

from .partition import Partition

RETRY_SECONDS: Final = 0.2

log = structlog.get_logger(__name__)


class IsrChange(NamedTuple):
    """The ISR that a leader wants its partition to have."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """With which registration each member of the ISR has fetched, so that one who has come anew since is not meant."""
    least_isr: int
    """The `min.insync.replicas` by which this leader acknowledges."""


AlterIsr = Callable[[int, Sequence[IsrChange]], Awaitable[list[AlterPartitionResult]]]
"""Asks the controller, with a number that grows; `OSError` or `CodedError` when nobody knows what became of it."""


class IsrKeeper:
    """Sends AlterPartition requests of the partitions led here to the controller, one at a time."""

    def __init__(
        self,
        alter: AlterIsr,
        answered: Callable[[IsrChange, AlteredPartition], None],
        own_epoch: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._alter = alter
        self._answered = answered
        self._own_epoch = own_epoch
        self._now = now
        self._requests: dict[Partition, Mapping[int, int]] = {}
        """ISRs, and with which registration each member had fetched when that was decided."""
        self._news = asyncio.Event()
        self._number = 0

    def propose(self, partition: Partition, isr: frozenset[int]) -> None:
        """Ask for an ISR; the latest request counts."""
        assert partition.followers is not None
        self._requests[partition] = partition.followers.epochs_of(isr, self._own_epoch())
        self._news.set()

    async def run(self) -> None:
        """Send requests until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            requests, self._requests = self._requests, {}
            try:
                changes = {p: _change(p, epochs) for p, epochs in requests.items() if _is_asking(p, epochs.keys())}
                if changes:
                    await self._carry(changes)
            except Exception:
                self._ask_again(requests)
                raise

    def _ask_again(self, changes: Mapping[Partition, Mapping[int, int]]) -> None:
        """Send these again: whether the controller has carried them out is not known."""
        self._requests = {**changes, **self._requests}
        self._news.set()

    async def _carry(self, changes: dict[Partition, IsrChange]) -> None:
        self._number += 1
        try:
            outcomes = await self._alter(self._number, list(changes.values()))
        except (OSError, CodedError) as error:
            log.info("the controller could not be asked for an ISR", reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            self._ask_again(
                {p: dict(zip(change.isr, change.broker_epochs, strict=True)) for p, change in changes.items()}
            )
            return
        refusals: Counter[str] = Counter()
        for (partition, change), result in zip(changes.items(), outcomes, strict=True):
            if isinstance(result, AlteredPartition):
                self._answered(change, result)
            else:
                refusals[str(result)] += 1
                _refused(partition, change, result, self._now())
        for reason, count in refusals.items():
            log.info("the controller refused ISRs", partitions=count, reason=reason)


def _change(partition: Partition, epochs: Mapping[int, int]) -> IsrChange:
    members = tuple(r for r in partition.state.replicas if r in epochs)
    return IsrChange(
        partition.topic,
        partition.topic_id,
        partition.index,
        partition.leader_epoch,
        partition.state.partition_epoch,
        members,
        tuple(epochs[member] for member in members),
        partition.rules.min_insync_replicas,
    )


def _is_asking(partition: Partition, isr: AbstractSet[int]) -> bool:
    return partition.is_leader and partition.followers is not None and partition.followers.requested_isr == isr


def _refused(partition: Partition, change: IsrChange, error: CodedError, now: float) -> None:
    is_certain = error.code is ErrorCode.ineligible_replica and _is_asking(partition, frozenset(change.isr))
    if is_certain and partition.state.partition_epoch == change.partition_epoch:
        assert partition.followers is not None
        partition.followers.refused(now)
        partition.move_high_watermark()
