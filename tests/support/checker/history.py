"""A history: one event for each thing that a client asked for, and one for what came of it.

An event is a JSON object. All have `op`, `phase` and `at` (seconds), and those of one request share an `id`:

| phase | meaning |
|---|---|
| invoke | the request is about to be sent |
| ok | it was answered: done |
| fail | it was answered: not done, and never will be |
| info | nobody knows: it may have been done, may still be, or never |

| op | fields |
|---|---|
| send | client, topic, partition, values, keys, acks, stream, transaction; ok: offset (of the first, -1 if not told) |
| poll | client, topic, partition, isolation, start, since, records [[offset, value, key]], next; or error, log_start |
| end | transaction, commit, group, consumed [[topic, partition, start, next]] |
| commit | group, topic, partition, offset |
| committed | group, topic, partition, offset, since |
| acquired | group, member, topic, partition, since, lock (seconds), records [[offset, value]], ranges [[from, to]] |
| acknowledge | group, member, topic, partition, offsets, kind (gap, accept, release, reject, renew) |
| left | member, since: from then on brokers may have taken it for gone |
| letter | group, topic, partition, offset, count, value: a dead letter that is there at last |
| drained | group, letters (the topic of its dead letters): a share group that was to be done with everything |
| delete_records | topic, partition, before; ok: low_watermark, short (fewer in sync than min.insync.replicas) |
| delete_topic | topic |
| leader | topic, partition, epoch: a leader was elected |
| loss | topic, partition: a fault has destroyed every copy that counts, which nothing is promised to survive |
| final | topic, partition, log_start, next, records, committed, control, compacted, retained: what is there at last |
| terms | stale_seconds: for how long a leader may not hear that it is none any more |
| complaint | text: what a client found wrong itself |

A topic is called by its id, so that one that was made anew is another; or by its name where it is never deleted.
Values are unique: every record that is ever sent has its own. A `stream` is what one idempotent producer id sends
to one partition.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]
Records = Mapping[int, str]
"""Values by their offsets."""

ACKS_ALL: Final = -1


class Operation:
    """A request under way; it ends at most once."""

    __slots__ = ("_history", "id", "is_done", "op")

    def __init__(self, history: "History", op: str, number: int) -> None:
        self._history = history
        self.op = op
        self.id = number
        self.is_done = False

    def ok(self, **fields: Any) -> None:
        """It was done."""
        self._end("ok", fields)

    def fail(self, **fields: Any) -> None:
        """It was not done, and never will be."""
        self._end("fail", fields)

    def info(self, **fields: Any) -> None:
        """Nobody knows."""
        self._end("info", fields)

    def _end(self, phase: str, fields: Mapping[str, Any]) -> None:
        if not self.is_done:
            self.is_done = True
            self._history.note(self.op, phase, id=self.id, **fields)


class History:
    """Everything that clients did, in the order in which it was noted."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.events: list[Event] = []
        self._now = now
        self._ids = count(1)
        """Taken by the threads of several clients: each number once."""

    def note(self, op: str, phase: str, **fields: Any) -> None:
        self.events.append({"at": self._now(), "op": op, "phase": phase, **fields})

    def invoke(self, op: str, **fields: Any) -> Operation:
        """A request that is about to be sent."""
        number = next(self._ids)
        self.note(op, "invoke", id=number, **fields)
        return Operation(self, op, number)

    def send(
        self,
        client: str,
        topic: str,
        partition: int,
        values: Sequence[str],
        *,
        acks: int = ACKS_ALL,
        stream: str | None = None,
        keys: Sequence[str] | None = None,
        transaction: str | None = None,
    ) -> Operation:
        """A batch that is about to be sent, once or until there is an answer."""
        return self.invoke(
            "send",
            client=client,
            topic=topic,
            partition=partition,
            values=list(values),
            keys=None if keys is None else list(keys),
            acks=acks,
            stream=stream,
            transaction=transaction,
        )

    def saw(
        self,
        client: str,
        topic: str,
        partition: int,
        start: int,
        records: Sequence[tuple[int, str, str | None]],
        *,
        next_offset: int | None = None,
        committed_only: bool = False,
        since: float | None = None,
    ) -> None:
        """What a consumer at `start` was given, and where it goes on."""
        if not records and next_offset in (None, start):
            return
        after = max((offset for offset, _, _ in records), default=start - 1) + 1
        self.note(
            "poll",
            "ok",
            client=client,
            topic=topic,
            partition=partition,
            isolation="read_committed" if committed_only else "read_uncommitted",
            start=start,
            since=self._now() if since is None else since,
            records=[list(record) for record in records],
            next=after if next_offset is None else next_offset,
        )

    def final(
        self,
        topic: str,
        partition: int,
        records: Iterable[tuple[int, str, str | None]],
        *,
        log_start: int = 0,
        next_offset: int | None = None,
        committed: Iterable[int] | None = None,
        control: Iterable[int] = (),
        compacted: bool = False,
        retained: bool = False,
    ) -> None:
        """What a partition holds once everything is over.

        `committed` are the offsets that `read_committed` shows, `control` those of markers.
        """
        held = list(records)
        self.note(
            "final",
            "ok",
            topic=topic,
            partition=partition,
            records=[list(record) for record in held],
            log_start=log_start,
            next=max((offset for offset, _, _ in held), default=-1) + 1 if next_offset is None else next_offset,
            committed=None if committed is None else sorted(committed),
            control=sorted(control),
            compacted=compacted,
            retained=retained,
        )

    def placed(self) -> dict[tuple[str, int], dict[int, str]]:
        """By topic and partition: the values that were acknowledged, where that was told, by their offsets."""
        events = list(self.events)
        asked = {event["id"]: event for event in events if _is(event, "send", "invoke")}
        found: dict[tuple[str, int], dict[int, str]] = {}
        for event in events:
            if _is(event, "send", "ok") and event["offset"] >= 0:
                send = asked[event["id"]]
                values = found.setdefault((send["topic"], send["partition"]), {})
                values |= dict(enumerate(send["values"], event["offset"]))
        return found

    def seen(self, topic: str, partition: int) -> dict[int, str]:
        """What consumers were given of a partition, by offset."""
        polls = [event for event in list(self.events) if _is(event, "poll", "ok")]
        mine = [event for event in polls if (event["topic"], event["partition"]) == (topic, partition)]
        return {offset: value for event in mine for offset, value, _ in event["records"]}

    def complain(self, text: str) -> None:
        """What a client found wrong itself."""
        self.note("complaint", "info", text=text)

    @property
    def acknowledged(self) -> int:
        """Values whose producers were told that they are kept."""
        sizes = {event["id"]: len(event["values"]) for event in self.events if _is(event, "send", "invoke")}
        return sum(sizes[event["id"]] for event in self.events if _is(event, "send", "ok"))

    @property
    def shown(self) -> int:
        """Records that consumers were given."""
        return sum(len(event["records"]) for event in self.events if _is(event, "poll", "ok"))

    def write(self, path: Path) -> None:
        """As JSON, one event a line."""
        path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in self.events))


def read(path: Path) -> Iterator[Event]:
    """The events of a file."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)


def _is(event: Event, op: str, phase: str) -> bool:
    return bool(event["op"] == op and event["phase"] == phase)
