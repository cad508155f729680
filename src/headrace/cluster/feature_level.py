"""The feature level of a cluster, which all its brokers speak: kept in the store, raised when an operator says so.

A new cluster takes the newest level of the broker that makes it. A store without one is of before there were levels.
`protocol.levels` says what levels are.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.levels import FIRST, LevelRange

from .store import Conflict, Create, MetadataStore, Operation, Put, StoreError, Versioned

LEVEL: Final = "/cluster/feature_level"


class UnsupportedLevel(Exception):
    """This broker does not speak the level of its cluster, and so can be no member."""

    def __init__(self, level: int, spoken: LevelRange) -> None:
        advice = (
            "start a later release of headrace"
            if level > spoken.max
            else f"run a release between, and raise the level with `headrace cluster upgrade --to {spoken.min}` first"
        )
        super().__init__(f"the cluster's feature level is {level}, and this broker speaks {spoken}: {advice}")
        self.level = level


def encode_level(level: int) -> bytes:
    return str(level).encode()


def decode_level(stored: Versioned | None) -> int:
    """The finalized level; `StoreError` where the record is none."""
    if stored is None:
        return FIRST
    text = stored.value.decode(errors="replace")
    if not text.isdecimal() or int(text) < FIRST:
        raise StoreError(f"the record {LEVEL} in the metadata store cannot be read ({text!r})")
    return int(text)


async def load_level(store: MetadataStore) -> int:
    """The level of the cluster whose state is in the store."""
    return decode_level(await store.get(LEVEL))


async def check_level(store: MetadataStore, spoken: LevelRange) -> int:
    """The same, where a broker speaks it; `UnsupportedLevel` where it does not."""
    level = await load_level(store)
    if level not in spoken:
        raise UnsupportedLevel(level, spoken)
    return level


class Speaker(NamedTuple):
    """A broker, by what its levels are decided on."""

    levels: LevelRange
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUpdate:
    """What became, or would become, of the cluster's level."""

    before: int
    after: int
    newest: int
    """The highest that all brokers speak."""
    brokers: Mapping[int, Speaker]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        brokers = {str(broker): {"levels": list(s.levels), "version": s.version} for broker, s in self.brokers.items()}
        return {"before": self.before, "after": self.after, "newest": self.newest, "brokers": brokers}


def next_level(level: int, brokers: Mapping[int, Speaker], to: int | None) -> LevelUpdate:
    """The cluster raised from its level to another one, or to the newest that all brokers speak.

    `CodedError` (FEATURE_UPDATE_FAILED) where a broker does not speak that one, or where it is lower.
    """
    newest = min((speaker.levels.max for speaker in brokers.values()), default=level)
    after = max(newest, level) if to is None else to
    if after < level:
        raise _refused(f"the cluster's feature level is {level}, and levels are never lowered")
    lacking = [broker for broker, speaker in sorted(brokers.items()) if after not in speaker.levels]
    if lacking and after != level:
        named = ", ".join(_described(broker, brokers[broker]) for broker in lacking)
        raise _refused(f"feature level {after} is not spoken by {named}; replace them by a later release first")
    return LevelUpdate(before=level, after=after, newest=newest, brokers=brokers)


def _described(broker: int, speaker: Speaker) -> str:
    return f"broker {broker} (version {speaker.version or 'unknown'}, level {speaker.levels})"


def _refused(message: str) -> CodedError:
    return CodedError(ErrorCode.feature_update_failed, message)


async def update_level(
    store: MetadataStore,
    commit: Callable[[Sequence[Operation]], Awaitable[None]],
    brokers: Mapping[int, Speaker],
    to: int | None,
    *,
    dry_run: bool,
) -> LevelUpdate:
    """Raise the level in the store, unless it is only to be seen what that would come to."""
    stored = await store.get(LEVEL)
    update = next_level(decode_level(stored), brokers, to)
    if update.after != update.before and not dry_run:
        value = encode_level(update.after)
        try:
            await commit([Create(LEVEL, value) if stored is None else Put(LEVEL, value, stored.version)])
        except Conflict as conflict:
            raise _refused("somebody else has raised the feature level meanwhile; look again") from conflict
    return update
