"""A member in a process of its own, and its log as it grows."""

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..members.common import Order
from ..model import Membership

Place = tuple[str, int]
_ROOT = Path(__file__).parents[3]
_CLOSE_SECONDS = 15.0
_OWNING = {"assigned", "revoked", "lost"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a member's log; `places` are those assigned, revoked or lost, or that of the record."""

    kind: str
    at: int
    places: tuple[Place, ...] = ()
    offset: int = -1
    value: str = ""
    error: str = ""

    @classmethod
    def parse(cls, line: dict[str, Any]) -> "Event":
        kind, at = line["event"], line["at"]
        if kind == "record":
            place = (line["topic"], line["partition"])
            return cls(kind=kind, at=at, places=(place,), offset=line["offset"], value=line["value"])
        places = tuple((topic, partition) for topic, partition in line.get("partitions", ()))
        return cls(kind=kind, at=at, places=places, error=line.get("error", ""))


class MemberLog:
    """What a member wrote; `ended` is when it was killed, None for one that runs or closed by itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.ended: int | None = None

    def owned(self) -> set[Place]:
        """The places the member owns by its last words."""
        owned: set[Place] = set()
        for event in list(self.events):
            if event.kind == "assigned":
                owned.update(event.places)
            elif event.kind in ("revoked", "lost"):
                owned.difference_update(event.places)
        return owned if self.ended is None and not self.closed() else set()

    def closed(self) -> bool:
        """Whether the member has begun to close."""
        return any(event.kind == "closing" for event in list(self.events))

    def values(self) -> set[str]:
        """What the member processed."""
        return {event.value for event in list(self.events) if event.kind == "record"}

    def changes(self, since: int = 0) -> list[Event]:
        """Assignments that were given or taken, if any partition was in them."""
        return [e for e in list(self.events) if e.kind in _OWNING and e.places and e.at >= since]

    def trouble(self) -> str:
        """The last error the client told, if it told any."""
        return next((event.error for event in reversed(list(self.events)) if event.kind == "trouble"), "")


class Member:
    """A running member; it is one process group, so that what it starts dies with it."""

    def __init__(self, name: str, membership: Membership, order: Order, errors: Path) -> None:
        self.log = MemberLog(name)
        self.order = order
        self._errors = errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*membership.command, order.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **membership.environment},
                cwd=_ROOT,
                start_new_session=True,
                text=True,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def name(self) -> str:
        return self.log.name

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._errors.with_suffix(".jsonl").open("w") as kept:
            for line in self._process.stdout:
                kept.write(line)
                # A line cut short by a kill was not written.
                if line.startswith("{") and line.endswith("}\n"):
                    self.log.events.append(Event.parse(json.loads(line)))

    def kill(self) -> None:
        """End the process without a chance to leave."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.log.ended = time.monotonic_ns()
        self._reader.join(_CLOSE_SECONDS)

    def close(self) -> None:
        """Let the client close its consumer, which leaves the group unless the member is static."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not close in {_CLOSE_SECONDS:.0f} s{self.words()}") from None
        self._reader.join(_CLOSE_SECONDS)
        assert code == 0, f"{self.name} ended with {code}{self.words()}"

    def words(self) -> str:
        """What the client told of its trouble, for an error message."""
        last = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
        words = [text for text in (self.log.trouble(), *last) if text]
        return f" ({'; '.join(words)[:300]})" if words else ""

    def discard(self) -> None:
        """End it, however it is."""
        if self.running:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
