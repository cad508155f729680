"""Requests too large to be read at once, read some elements at a time.

Guard and decoder take a microsecond or two for each element, which a request may have a million of; an event loop that
reads one at once serves nobody meanwhile. Here a struct with arrays is read array by array, an array element by
element, each by the same guard and the same decoder; the struct around them is decoded without its elements, and gets
them in the end.

To look for garbage among a hundred thousand elements takes longer than to read them, and so does letting go of them. So
the collector looks at a thousand at a time, which are then no longer young, and `discard_in_steps` lets go of what
nobody keeps.
"""

import gc
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from struct import Struct
from typing import Any, Final, get_args, get_origin

from kio.index import load_request_schema
from kio.serial import entity_reader

from .errors import ProtocolViolation
from .guard import Edit, Step, Walk, edited, field_step, smallest_of, struct_step, tags_step
from .schema import FIXED_SIZES, WireField, shape_of

LARGE: Final = 16 * 1024
"""Bytes of a request that is better read in steps: smaller ones take some 10 ms at the worst."""
STEP: Final = 100
"""Elements that are read before others get a turn: up to half a millisecond."""
_COLLECTED: Final = 1_000
"""Elements that the garbage collector looks at together."""
_FEW: Final = 64
"""Elements that are read at once."""
_NUMBERS: Final = {"int8": "b", "int32": "i", "int64": "q"}

Steps = Generator[None, None, tuple[Any, int]]
_Values = Generator[None, None, tuple[Sequence[Any], int]]


class _Reading(Walk):
    """A walk that tells when it is time to let others have a turn."""

    __slots__ = ("_collected", "_shown", "in_lists")

    def __init__(self, data: memoryview, *, in_lists: bool) -> None:
        super().__init__(data)
        self.in_lists = in_lists
        self._shown = self._collected = 0

    def is_due(self) -> bool:
        if self.elements - self._shown < STEP:
            return False
        self._shown = self.elements
        if self.elements - self._collected >= _COLLECTED:
            self._collected = self.elements
            gc.collect(0)
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Array:
    """A field that is an array, of structs (`plan`) or of plain values."""

    name: str
    smallest: int
    kafka_type: str | None
    plan: "_Plan | None"

    @property
    def is_nested(self) -> bool:
        return self.plan is not None and self.plan.has_arrays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """How a struct is read: its untagged fields in their order."""

    parts: tuple[tuple[Step, _Array | None], ...]
    has_arrays: bool
    is_flexible: bool
    whole: Step
    read: Callable[[memoryview | bytes, int], tuple[Any, int]]


def decode_request_in_steps(
    api_key: int, version: int, data: memoryview, *, in_lists: bool = False
) -> Generator[None, None, Any]:
    """The request as its entity, with turns for others where it yields; `ProtocolViolation` when it is none.

    With `in_lists` large arrays are lists, which can be discarded.
    """
    walk = _Reading(data.toreadonly(), in_lists=in_lists)
    try:
        entity, _ = yield from _struct(_plan(load_request_schema(api_key, version)), walk, 0)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, ProtocolViolation):
        raise
    except BaseException as error:  # a panic of the native decoder is not an Exception
        raise ProtocolViolation(f"a request that does not decode: {error}") from error
    return entity


def discard_in_steps(entity: Any) -> Generator[None, None, None]:
    """Let go of a request whose arrays are lists, and of whose elements nobody keeps any."""
    for field in fields(entity):
        values = getattr(entity, field.name)
        while isinstance(values, list) and values:
            del values[-STEP:]
            yield


@cache
def _plan(entity: type) -> _Plan:
    shape = shape_of(entity)
    types = {field.name: field.type for field in fields(entity)}
    parts = [
        (field_step(field, shape.flexible), _array(field, types[field.name], shape.flexible)) for field in shape.fields
    ]
    if shape.flexible:
        parts.append((tags_step(shape), None))
    return _Plan(
        parts=tuple(parts),
        has_arrays=any(array is not None for _, array in parts),
        is_flexible=shape.flexible,
        whole=struct_step(shape),
        read=entity_reader(entity),
    )


def _array(field: WireField, annotation: Any, is_flexible: bool) -> _Array | None:
    if not field.is_array:
        return None
    return _Array(
        name=field.name,
        smallest=smallest_of(field, is_flexible),
        kafka_type=field.kafka_type,
        plan=None if field.struct is None else _plan(_element(annotation)),
    )


def _element(annotation: Any) -> type:
    """The class of an array's elements: `tuple[Class, ...]`, which may stand in a union with None."""
    array = next((arg for arg in get_args(annotation) if get_origin(arg) is tuple), annotation)
    found: type = get_args(array)[0]
    return found


def _struct(plan: _Plan, walk: _Reading, start: int) -> Steps:
    at, edits_before = start, len(walk.edits)
    values: dict[str, Sequence[Any]] = {}
    cuts: list[Edit] = []
    for step, array in plan.parts:
        if array is None:
            at = step(walk, at)
            continue
        count, first = walk.array_count(at, plan.is_flexible)
        if count <= 0 or (count <= _FEW and not array.is_nested):
            at = step(walk, at)
            continue
        walk.fits(first, count, array.smallest)
        array_at = at
        values[array.name], at = yield from _elements(array, plan.is_flexible, walk, first, count)
        cuts.append((array_at, at, b"\1" if plan.is_flexible else b"\0\0\0\0"))
    return _decoded(plan, walk, start, at, edits_before, cuts, values), at


def _elements(array: _Array, is_flexible: bool, walk: _Reading, at: int, count: int) -> _Values:
    if array.kafka_type in _NUMBERS:
        return (yield from _numbers(array.kafka_type, walk, at, count))
    values = []
    for _ in range(count):
        walk.elements += 1
        if array.plan is None:
            value, at = walk.text(at, is_flexible)
        elif array.is_nested:
            value, at = yield from _struct(array.plan, walk, at)
        else:
            start, edits_before = at, len(walk.edits)
            at = array.plan.whole(walk, at)
            value = _decoded(array.plan, walk, start, at, edits_before, [], {})
        values.append(value)
        if walk.is_due():
            yield
    return (values if walk.in_lists else tuple(values)), at


def _numbers(kafka_type: str, walk: _Reading, at: int, count: int) -> _Values:
    layout, size = _NUMBERS[kafka_type], FIXED_SIZES[kafka_type]
    values: list[int] = []
    end = walk.advance(at, count * size)
    while at < end:
        part = min(50 * STEP, (end - at) // size)
        values += Struct(f">{part}{layout}").unpack_from(walk.data, at)
        walk.elements += part
        at += part * size
        yield
    return tuple(values), at


def _decoded(
    plan: _Plan,
    walk: _Reading,
    start: int,
    end: int,
    edits_before: int,
    cuts: list[Edit],
    arrays: dict[str, Sequence[Any]],
) -> Any:
    """The struct, with what was read of it before, and without what the guard cuts out."""
    if not cuts and len(walk.edits) == edits_before:
        return plan.read(walk.data, start)[0]
    edits = sorted(cuts + walk.edits[edits_before:])
    del walk.edits[edits_before:]
    entity = plan.read(edited(walk.data, start, end, edits), 0)[0]
    return replace(entity, **arrays) if arrays else entity
