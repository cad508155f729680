"""One member of a classic group, and what members ask for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .records import StoredMember


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup as the group sees it."""

    token: object
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    """Metadata by protocol, in the order of the member's preference."""
    must_know_its_id: bool = True
    """Whether a new member first gets an id, to join again with (v4+)."""
    can_skip_assignment: bool = True
    """Whether a returning leader understands that it need not assign again (v9+)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup as the group sees it."""

    token: object
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member named by a LeaveGroup request: by member id, or a static one by its instance id alone."""

    member_id: str = ""
    instance_id: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicMember:
    """A member. `join_token` and `sync_token` are the requests of it that wait for an answer, if any."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Mapping[str, bytes]
    assignment: bytes = b""
    is_new: bool = False
    """Not yet part of a generation."""
    join_token: object | None = None
    sync_token: object | None = None

    @property
    def is_joining(self) -> bool:
        return self.join_token is not None

    @property
    def is_excused(self) -> bool:
        """Whether it need not heartbeat: it waits for us. A new one may still be dropped, as nobody knows its id."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def vote(self, candidates: Collection[str]) -> str:
        """The candidate that it prefers."""
        return next(name for name in self.protocols if name in candidates)

    def metadata(self, protocol: str | None) -> bytes:
        return self.protocols.get(protocol or "", b"")

    def store(self, protocol: str | None, assignment: bytes) -> StoredMember:
        """The member as it is kept in the log, with what it is assigned."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @classmethod
    def restored(cls, stored: StoredMember, protocol: str | None) -> "ClassicMember":
        """The member as the log has it: with the one protocol that its generation chose."""
        return cls(
            member_id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols={protocol or "": stored.subscription},
            assignment=stored.assignment,
        )
