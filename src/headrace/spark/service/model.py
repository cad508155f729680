"""What is kept of deployed pipelines: definitions (written by those who deploy), statuses (written by services)."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from .bundle import BadBundle, require_inside, unpacked

_FORMAT: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
"""A deployment's name is that of a directory as well."""
RUNNING: Final = "running"
STOPPED: Final = "stopped"


class BadRecord(Exception):
    """A record of the service's topics is none that this version understands; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How a deployed pipeline is run: what `headrace pipeline run` takes as options."""

    master: str = "local[*]"
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    bootstrap: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A definition. `revision` is new with each change, so that a runner knows whether it runs what is wanted."""

    name: str
    revision: str
    file: str
    archive: bytes = field(repr=False)
    settings: SparkSettings
    wanted: str = RUNNING
    time_ms: int = 0
    by: str = ""

    def encode(self) -> bytes:
        """As the value of a record."""
        text = {**asdict(self), "archive": base64.b64encode(self.archive).decode(), "format": _FORMAT}
        return json.dumps(text, separators=(",", ":")).encode()

    def files(self) -> dict[str, bytes]:
        """The pipeline's files by name; BadBundle if the archive is none of ours."""
        found = unpacked(self.archive)
        if self.file not in found:
            raise BadBundle(f"the archive has no file {self.file}")
        return found


def decode_deployment(name: str, value: bytes) -> Deployment:
    """A definition out of the topic; BadRecord for one that cannot be run."""
    try:
        text = json.loads(value)
        if text["format"] != _FORMAT:
            raise BadRecord(f"it has format {text['format']}, which this version does not know; upgrade the service")
        settings = {one.name: text["settings"].get(one.name) for one in fields(SparkSettings)}
        found = Deployment(
            name=name,
            revision=_text(text["revision"]),
            file=_text(text["file"]),
            archive=base64.b64decode(text["archive"], validate=True),
            settings=SparkSettings(**{**settings, "conf": _texts(settings["conf"] or {})}),
            wanted=_text(text["wanted"]),
            time_ms=int(text["time_ms"]),
            by=_text(text["by"]),
        )
        require_inside(found.file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadBundle) as error:
        raise BadRecord(f"it is no definition of a pipeline: {error}") from error
    if not NAME.fullmatch(name) or found.wanted not in (RUNNING, STOPPED):
        raise BadRecord("it is no definition of a pipeline")
    for setting in ("master", "remote", "checkpoint", "bootstrap"):
        if not isinstance(getattr(found.settings, setting), (str, type(None))):
            raise BadRecord(f"its setting {setting} is no text")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in values.items()}


class State(StrEnum):
    """Where a deployed pipeline stands."""

    WAITING = "waiting"
    """For a service that may run it."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    BACKOFF = "backoff"
    """It has failed, and starts again after a pause."""
    CRASH_LOOP = "crash-loop"
    """The same, many times in a row."""
    FAILED = "failed"
    """It cannot run as it is, and is not tried again before it is deployed anew or restarted."""
    DONE = "done"
    """It has ended by itself, having processed what there was."""


ACTIVE: Final = (State.STARTING, State.RUNNING, State.STOPPING)
"""States that a live service reports again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a service says of a pipeline. Times are in milliseconds since 1970."""

    name: str
    state: State
    revision: str = ""
    service: str = ""
    host: str = ""
    process: int = 0
    runner: str = ""
    """The id under which the runner holds the lease."""
    home: str = ""
    """Where the checkpoint is, so that nobody starts without it."""
    spark: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    restarts: int = 0
    failures: int = 0
    """In a row."""
    next_start_ms: int = 0
    problem: str = ""
    sinks: tuple[Mapping[str, Any], ...] = ()

    def encode(self) -> bytes:
        """As the value of a record."""
        return json.dumps({**asdict(self), "format": _FORMAT}, separators=(",", ":"), default=str).encode()


def decode_status(value: bytes) -> Status:
    """A status out of the topic; BadRecord for one that is none."""
    try:
        text = json.loads(value)
        known = {one.name for one in fields(Status)}
        given = {name: one for name, one in text.items() if name in known}
        return Status(**{**given, "state": State(given["state"]), "sinks": tuple(given.get("sinks") or ())})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"it is no status of a pipeline: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """A sign of life of a service."""

    id: str
    host: str
    process: int
    since_ms: int
    updated_ms: int
    pipelines: int = 0
    metrics: str = ""

    def encode(self) -> bytes:
        """As the value of a record."""
        return json.dumps({**asdict(self), "format": _FORMAT}, separators=(",", ":")).encode()


def decode_service(value: bytes) -> ServiceReport:
    """A sign of life out of the topic; BadRecord for what is none."""
    try:
        text = json.loads(value)
        return ServiceReport(**{one.name: text[one.name] for one in fields(ServiceReport)})
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecord(f"it is no report of a service: {error}") from error
