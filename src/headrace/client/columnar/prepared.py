"""Transactions seen from outside: looked at, ended, listed and fenced by somebody who is not their writer.

What a writer prepared can be committed by another process long after, by producer id and epoch. Many are asked about at
once: one request to each coordinator, or one after the other without waiting in between.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.protocol.transactions import DescribedTransaction

from ..core.codes import Remedy, is_retriable, remedy_of
from ..core.errors import ConnectionLost, VersionNotServed
from ..core.metadata import CoordinatorKind
from ..core.transactions import NOBODY, end_request, list_transactions_request
from ..errors import ClientError
from .channel import Channel
from .cluster import Cluster
from .retry import Patience, TryAgain, refused
from .transaction import PreparedTransaction, init_producer

_NEEDED: Final = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)
_GONE: Final = frozenset({ErrorCode.invalid_producer_id_mapping, ErrorCode.transactional_id_not_found})
_AT_ONCE: Final = 200
"""Unanswered requests on a connection."""


class Ending(Enum):
    """What came of ending a transaction."""

    DONE = "done"
    CONTRARY = "contrary"
    """It had ended the other way."""
    GONE = "gone"
    """The broker aborted it, or somebody took its transactional id over."""


class Description(NamedTuple):
    """A transactional id as its coordinator knows it; `state` is Kafka's word, such as `Ongoing`."""

    state: str
    producer_id: int
    epoch: int


def lack_of_transactions(cluster: Cluster, transactional_id: str) -> str | None:
    """Why transactions cannot be used, in words for people; None when they can."""

    def attempt() -> str | None:
        with cluster.any_channel() as channel:
            for api in _NEEDED:
                try:
                    channel.version_of(api)
                except VersionNotServed:
                    return f"the cluster does not serve {api.name}"
        cluster.coordinator(CoordinatorKind.TRANSACTION, transactional_id)
        return None

    try:
        return cluster.retried(attempt)
    except ClientError as error:
        if error.code == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            return error.message
        raise


def describe_transactions(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, Description | None]:
    """What the coordinators know of each id; None where they do not know it."""
    descriptions: dict[str, Description | None] = {}

    def take(state: DescribedTransaction) -> ErrorCode:
        code = state.error_code
        if code is ErrorCode.none:
            descriptions[state.transactional_id] = Description(state.state, state.producer_id, state.producer_epoch)
        elif code is ErrorCode.transactional_id_not_found:
            descriptions[state.transactional_id] = None
        else:
            return code
        return ErrorCode.none

    def ask(channel: Channel, names: Sequence[str]) -> dict[str, ErrorCode]:
        return {state.transactional_id: take(state) for state in channel.describe_transactions(names)}

    wanted = list(transactional_ids)
    _until_all(cluster, wanted, descriptions, lambda left: _ask_coordinators(cluster, left, ask))
    return {name: descriptions[name] for name in wanted}


def end_transactions(
    cluster: Cluster, transactions: Sequence[PreparedTransaction], *, commit: bool, patience: Patience | None = None
) -> dict[str, Ending]:
    """Commit or abort transactions, and say what came of each, by transactional id; doing it twice is no error.

    Coordinators that stay away are asked again for as long as `patience` has it, or any other call of the client.
    """
    by_name = {one.transactional_id: one for one in transactions}
    endings: dict[str, Ending] = {}

    def take(name: str, code: ErrorCode) -> ErrorCode:
        ending = _ending(code)
        if ending is None:
            return code
        endings[name] = ending
        return ErrorCode.none

    def ask(channel: Channel, names: Sequence[str]) -> dict[str, ErrorCode]:
        version = channel.version_of(ApiKey.END_TXN)
        codes = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            for name in some:
                values = end_request(name, by_name[name].producer, commit=commit)
                channel.send(ApiKey.END_TXN, version, [encode_request(ApiKey.END_TXN, version, values)])
            for name in some:
                codes[name] = take(name, channel.receive_entity().error_code)
        return codes

    _until_all(cluster, list(by_name), endings, lambda left: _ask_coordinators(cluster, left, ask), patience)
    return endings


def open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """The ids, of those that start with the prefix, whose transactions are open; a broker that does not answer is left
    out."""
    names: set[str] = set()
    for node in cluster.brokers():
        try:
            names.update(_open_at(cluster, node))
        except (ConnectionLost, TryAgain):
            continue
    return sorted(name for name in names if name.startswith(prefix))


def fence(cluster: Cluster, transactional_id: str) -> None:
    """Abort what is open under the id, and shut its writer out."""
    init_producer(cluster, transactional_id, cluster.settings["transaction.timeout.ms"], NOBODY)


def _open_at(cluster: Cluster, node: int) -> list[str]:
    with cluster.channel_to(node) as channel:
        answer = channel.ask(ApiKey.LIST_TRANSACTIONS, list_transactions_request(["Ongoing"]))
    if answer.error_code is not ErrorCode.none:
        raise TryAgain(refused(answer.error_code, f"the transactions of broker {node}"))
    return [state.transactional_id for state in answer.transaction_states]


def _ending(code: ErrorCode) -> Ending | None:
    if code is ErrorCode.none:
        return Ending.DONE
    if code is ErrorCode.invalid_txn_state:
        return Ending.CONTRARY
    is_gone = code in _GONE or remedy_of(code) is Remedy.GIVE_UP_PRODUCER
    return Ending.GONE if is_gone else None


def _until_all(
    cluster: Cluster,
    transactional_ids: Sequence[str],
    answers: dict[str, Any],
    ask: Callable[[list[str]], dict[str, ErrorCode]],
    patience: Patience | None = None,
) -> None:
    """Ask about those that are not found yet until all are."""

    def attempt() -> None:
        problem: ClientError | None = None
        for name, code in ask([name for name in transactional_ids if name not in answers]).items():
            if code is ErrorCode.none:
                continue
            problem = refused(code, f"transactional id '{name}'")
            if not is_retriable(code):
                raise problem
            cluster.forget_coordinator(CoordinatorKind.TRANSACTION, name)
        if problem is not None:
            raise TryAgain(problem)

    cluster.retried(attempt, patience)


def _ask_coordinators(
    cluster: Cluster, names: Sequence[str], ask: Callable[[Channel, Sequence[str]], dict[str, ErrorCode]]
) -> dict[str, ErrorCode]:
    by_node: dict[int, list[str]] = defaultdict(list)
    for name in names:
        by_node[cluster.coordinator(CoordinatorKind.TRANSACTION, name)].append(name)
    codes: dict[str, ErrorCode] = {}
    for node, some in by_node.items():
        try:
            with cluster.channel_to(node) as channel:
                codes |= ask(channel, some)
        except ConnectionLost:
            for name in some:
                cluster.forget_coordinator(CoordinatorKind.TRANSACTION, name)
            raise
    return codes
