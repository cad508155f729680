"""Changes to the settings of a resource, as AlterConfigs and IncrementalAlterConfigs ask for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode

from .names import shown
from .setting import Setting, Type


class AlterConfigOpType(IntEnum):
    """What to do with a setting, numbered as on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """One change of one setting."""

    operation: AlterConfigOpType
    name: str
    value: str | None = None


def changed(
    current: Mapping[str, str],
    changes: Sequence[AlterConfigOp],
    *,
    setting: Callable[[str], Setting],
    in_force: Callable[[str], str],
) -> dict[str, str]:
    """What is set after the changes. Lists grow and shrink from the value in force, set here or not."""
    _refuse_repeats(change.name for change in changes)
    result = dict(current)
    for change in changes:
        if change.operation is AlterConfigOpType.DELETE:
            result.pop(change.name, None)
        elif change.value is None:
            raise CodedError(
                ErrorCode.invalid_request,
                f"Null value not supported for {change.operation.name} of {shown(change.name)}; use DELETE",
            )
        elif change.operation is AlterConfigOpType.SET:
            result[change.name] = change.value
        else:
            _require_list(setting(change.name), change.operation)
            result[change.name] = _edited(in_force(change.name), change.operation, change.value)
    return result


def _refuse_repeats(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CodedError(
                ErrorCode.invalid_request, f"{shown(name)} stands more than once in the request; name it once"
            )
        seen.add(name)


def _require_list(setting: Setting, operation: AlterConfigOpType) -> None:
    if setting.type is not Type.LIST:
        raise CodedError(
            ErrorCode.invalid_config,
            f"{operation.name} is not allowed for {setting.name}, which is not a list; use SET",
        )


def _edited(current: str, operation: AlterConfigOpType, value: str) -> str:
    items = [item.strip() for item in current.split(",") if item.strip()]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation is AlterConfigOpType.APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)
