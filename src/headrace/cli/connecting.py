"""Clients of a cluster for the commands: all of them say on stderr what they wait for, and why."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypedDict

from headrace.client.admin import Admin, answers
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.client.group_reader import GroupReader
from headrace.client.properties import Located, for_columnar, for_librdkafka
from headrace.client.reader import RecordReader
from headrace.client.waiting import Diagnose, OnWait
from headrace.client.writer import RecordWriter

from .client_options import ClusterTarget, resolve_target, was_given
from .console import bad_input, note
from .lean import lean_imports

if TYPE_CHECKING:
    from headrace.ops.configs import ConfigOperations
    from headrace.ops.groups import GroupAdmin
    from headrace.ops.observer import Observer
    from headrace.ops.operations import Operations
    from headrace.ops.security import SecurityOperations
    from headrace.ops.share_groups import ShareGroupOperations
    from headrace.ops.transactions import TransactionOperations

Properties = list[str] | None
_DIAGNOSIS_SECONDS: Final = 1.2


class _Waiting(TypedDict):
    on_wait: OnWait
    diagnose: Diagnose


def admin(bootstrap: str, properties: Properties) -> Admin:
    """A client that administers topics."""
    target = resolve_target(bootstrap, properties)
    with _located(target):
        return Admin(target.bootstrap, for_librdkafka(target.settings), **_waiting(target))


def group_admin(bootstrap: str, properties: Properties) -> "GroupAdmin":
    """A client that administers groups and topics."""
    from headrace.ops.groups import GroupAdmin

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return GroupAdmin(target.bootstrap, for_librdkafka(target.settings), **_waiting(target))


def share_group_operations(bootstrap: str, properties: Properties) -> "ShareGroupOperations":
    """A client for share groups."""
    with lean_imports():
        from headrace.ops.share_groups import ShareGroupOperations

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return ShareGroupOperations(target.bootstrap, for_columnar(target.settings), **_waiting(target))


def operations(bootstrap: str, properties: Properties) -> "Operations":
    """A client for operator requests."""
    with lean_imports():
        from headrace.ops.operations import Operations

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return Operations(target.bootstrap, for_columnar(target.settings), **_waiting(target))


def config_operations(bootstrap: str, properties: Properties) -> "ConfigOperations":
    """A client for the settings of whatever has some."""
    with lean_imports():
        from headrace.ops.configs import ConfigOperations

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return ConfigOperations(target.bootstrap, for_columnar(target.settings), **_waiting(target))


def observer(bootstrap: str, properties: Properties, seconds: float = 2.0) -> "Observer":
    """A client that reads how a cluster is, again and again; a broker may take so many seconds for each answer."""
    with lean_imports():
        from headrace.ops.observer import Observer

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return Observer(target.bootstrap, for_columnar(target.settings), seconds=seconds)


def transaction_operations(bootstrap: str, properties: Properties) -> "TransactionOperations":
    """A client for operator requests about transactions."""
    with lean_imports():
        from headrace.ops.transactions import TransactionOperations

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return TransactionOperations(target.bootstrap, for_columnar(target.settings), **_waiting(target))


def security_operations(bootstrap: str, properties: Properties) -> "SecurityOperations":
    """A client for who may do what."""
    with lean_imports():
        from headrace.ops.security import SecurityOperations

    target = resolve_target(bootstrap, properties)
    with _located(target):
        return SecurityOperations(target.bootstrap, for_columnar(target.settings), **_waiting(target))


def record_reader(
    bootstrap: str,
    properties: Properties,
    topic: str,
    starts: dict[int, int],
    ends: dict[int, int] | None,
    **settings: Any,
) -> RecordReader:
    """A reader of ranges of a topic; settings of the client come before those of the user."""
    target = resolve_target(bootstrap, properties)
    given = _laid_over(settings, target.settings, {"isolation.level": "isolation"})
    return RecordReader(target.bootstrap, topic, starts, ends, given, **_waiting(target))


def group_reader(
    bootstrap: str, properties: Properties, topic: str, group: str, *, follow: bool, **settings: Any
) -> GroupReader:
    """A reader of a topic that is a member of a group."""
    target = resolve_target(bootstrap, properties)
    given = _laid_over(settings, target.settings, {"isolation.level": "isolation", "auto.offset.reset": "from_"})
    return GroupReader(target.bootstrap, topic, group, given, follow=follow, on_wait=_waiting(target)["on_wait"])


def record_writer(
    bootstrap: str, properties: Properties, topic: str, partition: int | None, settings: dict[str, Any]
) -> RecordWriter:
    """A writer to a topic that exists."""
    target = resolve_target(bootstrap, properties)
    options = {"acks": "acks", "compression.type": "compression", "enable.idempotence": "idempotent"}
    given = _laid_over(settings, target.settings, options)
    if "enable.idempotence" not in target.settings and not was_given("idempotent"):
        given["enable.idempotence"] = given["acks"] in ("all", "-1")
    with _located(target):
        return RecordWriter(target.bootstrap, topic, given, partition, **_waiting(target, also_one_broker=True))


def _laid_over(
    settings: Mapping[str, Any], target: Mapping[str, Located], options: Mapping[str, str]
) -> dict[str, Any]:
    """A command's own settings under those of the user, but for options of the command that the user has given."""
    shared = for_librdkafka(target)
    for name, option in options.items():
        if name in shared and was_given(option) and not target[name].origin.startswith("-X"):
            del shared[name]
    return {**settings, **shared}


@contextmanager
def _located(target: ClusterTarget) -> Iterator[None]:
    """An error of the client library about a setting says where it was given."""
    try:
        yield
    except ClientError as error:
        if error.code in ("_INVALID_ARG", "INVALID_CONFIG"):
            for name, located in target.settings.items():
                if name in error.message:
                    raise bad_input(f"{located.origin}: {error.message}") from error
        raise


def _waiting(target: ClusterTarget, *, also_one_broker: bool = False) -> _Waiting:
    return {
        "on_wait": lambda message: note(f"headrace: {message}"),
        "diagnose": lambda: _diagnosis(target, also_one_broker=also_one_broker),
    }


def _diagnosis(target: ClusterTarget, *, also_one_broker: bool) -> ClientError | None:
    """Why an answer does not come: no broker answers, or none reaches its store. With `also_one_broker` what is wrong
    with any of them, as a full disk."""
    silence = answers(target.bootstrap)
    if silence is not None:
        return silence
    with lean_imports():
        from headrace.client.columnar.settings import ClientSettings
        from headrace.ops.health import hopeless, reasons

    try:
        settings = ClientSettings({**for_columnar(target.settings), "bootstrap.servers": target.bootstrap})
    except ClientError:
        return None  # it has settings that only librdkafka knows
    ask = reasons if also_one_broker else hopeless
    reason = ask(settings.bootstrap, settings.connection, _DIAGNOSIS_SECONDS)
    return ClusterUnreachable(reason, "_TIMED_OUT") if reason else None
