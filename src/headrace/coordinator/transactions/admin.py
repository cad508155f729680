"""What operators ask of transactions: to list and to describe them, and whether somebody will end one."""

from collections.abc import Collection, Iterable
from typing import Any, Final

from headrace.coordinator.consumer.regex import matcher
from headrace.coordinator.turns import in_turns
from headrace.net.peers import PeerUnreachable
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.patterns import Pattern, PatternError
from headrace.replication.transactions import TopicPartition

from .model import Transaction
from .records import check_id
from .service import TransactionCoordinator
from .states import PREPARED, State

STATES: Final = {state.value: state for state in State}
ANY_DURATION: Final = -1
_TO_BE_ENDED: Final = tuple(state.value for state in (State.ONGOING, *PREPARED))
Open = set[tuple[int, TopicPartition]]
"""Producer ids, and the partitions that their transactions are open on."""
_LIST_VERSION: Final = 1
_DESCRIBE_VERSION: Final = 0


async def list_transactions(
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
    entries = [entry for shard in coordinator.shards.all() for entry in shard.entries.values()]
    return [
        transaction
        async for transaction in in_turns([entry.transaction for entry in entries])
        if (not asked or transaction.state in wanted)
        and (not producers or transaction.producer_id in producers)
        and (longer_than_ms < 0 or _has_lasted(transaction, now_ms) > longer_than_ms)
        and (expression is None or _matches(expression, transaction.transactional_id))
    ]


def _matches(expression: Pattern, transactional_id: str) -> bool:
    try:
        return expression.matches(transactional_id)
    except PatternError as error:
        raise CodedError(ErrorCode.invalid_regular_expression, str(error)) from error


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


async def open_partitions(coordinator: TransactionCoordinator, producer_ids: Collection[int]) -> Open:
    """The partitions on which some coordinator will end a transaction of one of these producers.

    Every coordinator of the cluster is asked, as ids are not found by producer; `CodedError` unless all answer.
    """
    found: Open = set()
    if not producer_ids:
        return found
    for broker in coordinator.shards.leaders():
        if broker == coordinator.broker_id:
            found |= await _open_here(coordinator, producer_ids)
            continue
        try:
            found |= await _open_at(coordinator, broker, producer_ids)
        except PeerUnreachable as error:
            raise CodedError(ErrorCode.coordinator_not_available, str(error)) from error
    return found


async def _open_here(coordinator: TransactionCoordinator, producer_ids: Collection[int]) -> Open:
    listed = await list_transactions(
        coordinator,
        states=_TO_BE_ENDED,
        producer_ids=producer_ids,
        longer_than_ms=ANY_DURATION,
        pattern=None,
        now_ms=0,
    )
    return {(transaction.producer_id, where) for transaction in listed for where in transaction.partitions}


async def _open_at(coordinator: TransactionCoordinator, broker: int, producer_ids: Collection[int]) -> Open:
    filters = {
        "state_filters": _TO_BE_ENDED,
        "producer_id_filters": list(producer_ids),
        "duration_filter": ANY_DURATION,
    }
    listed = await _ask(coordinator, broker, ApiKey.LIST_TRANSACTIONS, _LIST_VERSION, filters)
    _check(listed.error_code)
    ids = [each.transactional_id for each in listed.transaction_states]
    if not ids:
        return set()
    asked = {"transactional_ids": ids}
    described = await _ask(coordinator, broker, ApiKey.DESCRIBE_TRANSACTIONS, _DESCRIBE_VERSION, asked)
    for each in described.transaction_states:
        _check(each.error_code)
    return {
        (each.producer_id, (topic.topic, index))
        for each in described.transaction_states
        for topic in each.topics
        for index in topic.partitions
    }


async def _ask(coordinator: TransactionCoordinator, broker: int, api: ApiKey, version: int, values: Any) -> Any:
    if coordinator.peers is None:
        raise CodedError(ErrorCode.coordinator_not_available, f"broker {broker} cannot be asked")
    return await coordinator.peers.ask(broker, api, version, values)


def _check(code: ErrorCode) -> None:
    if code not in (ErrorCode.none, ErrorCode.transactional_id_not_found):
        raise CodedError(code)
