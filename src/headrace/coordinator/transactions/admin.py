"""What operators ask of transactions: to list and to describe them."""

from collections.abc import Iterable
from typing import Final

from headrace.coordinator.consumer.regex import matcher
from headrace.protocol.errors import CodedError, ErrorCode

from .model import Transaction
from .records import check_id
from .service import TransactionCoordinator
from .states import State

STATES: Final = {state.value: state for state in State}
ANY_DURATION: Final = -1


def list_transactions(
    coordinator: TransactionCoordinator,
    *,
    states: Iterable[str],
    producer_ids: Iterable[int],
    longer_than_ms: int,
    pattern: str | None,
    now_ms: int,
) -> list[Transaction]:
    """The transactions that every filter lets through: by state, by producer id, by how long they have lasted, by an
    expression for the whole id. A filter that names nothing lets everything through."""
    asked = set(states)
    wanted = {STATES[name] for name in asked if name in STATES}
    producers = set(producer_ids)
    expression = matcher(pattern) if pattern else None
    return [
        transaction
        for shard in coordinator.shards.all()
        for transaction in [entry.transaction for entry in shard.entries.values()]
        if (not asked or transaction.state in wanted)
        and (not producers or transaction.producer_id in producers)
        and (longer_than_ms < 0 or _has_lasted(transaction, now_ms) > longer_than_ms)
        and (expression is None or expression.matches(transaction.transactional_id))
    ]


def _has_lasted(transaction: Transaction, now_ms: int) -> int:
    return now_ms - transaction.start_ms if transaction.start_ms >= 0 else ANY_DURATION


async def describe(coordinator: TransactionCoordinator, transactional_id: str) -> Transaction:
    """A transaction as it is stored; TRANSACTIONAL_ID_NOT_FOUND where nobody has the id."""
    check_id(transactional_id)
    shard = coordinator.shards.of(transactional_id)
    found = shard.get(transactional_id)
    await shard.committed(transactional_id)
    if found is None:
        raise CodedError(ErrorCode.transactional_id_not_found, f"nobody has the transactional id {transactional_id!r}")
    return found
