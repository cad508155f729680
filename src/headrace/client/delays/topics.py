"""The topics in which messages wait are made when the first one does."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..admin import Admin
from ..errors import ClientError, UnknownTopic
from .lanes import LANES, lanes_settings

_SETTLE_SECONDS: Final = 10.0


def make_derived_topic(
    admin: Admin, target: str, name: str, partitions: int, configs: Callable[[], Mapping[str, str]]
) -> None:
    """See that a topic is there that belongs to another, which must be there; `ClientError` says what is missing."""
    admin.partition_numbers(target)
    try:
        admin.partition_numbers(name)
        return
    except UnknownTopic:
        pass
    error = admin.create_topics([name], partitions, None, configs())[name]
    if error is not None and error.code != "TOPIC_ALREADY_EXISTS":
        raise ClientError(
            f"topic '{name}', which delays and schedules of '{target}' need, is not there, and this user may not make "
            f"it ({error.message}); who may does so by: headrace schedule setup {target}",
            error.code,
        )
    _wait_for_leaders(admin, name, partitions)


def _wait_for_leaders(admin: Admin, name: str, partitions: int) -> None:
    """Brokers may hear of a new topic a moment after who has made it."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        try:
            if len(admin.end_offsets(name, range(partitions))) == partitions:
                return
        except ClientError:
            pass
        time.sleep(0.05)


def make_lanes(admin: Admin, target: str, name: str) -> None:
    """See that the lanes of a topic are there."""
    make_derived_topic(admin, target, name, LANES, lambda: lanes_settings(_most_bytes(admin, target)))


def _most_bytes(admin: Admin, target: str) -> str | None:
    """How large messages of a topic may be, where that is a setting of its own, and this user may know it."""
    try:
        return admin.topic_overrides(target).get("max.message.bytes")
    except ClientError:
        return None


def admin_like(settings: Mapping[str, Any]) -> Admin:
    """The administration of the cluster that a client with these settings of librdkafka is connected to."""
    others = {name: value for name, value in settings.items() if name not in ("bootstrap.servers", "error_cb")}
    return Admin(settings["bootstrap.servers"], others)
