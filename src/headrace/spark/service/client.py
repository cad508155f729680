"""What those do who deploy and watch: definitions written, statuses and logs read. Needs no Spark."""

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.errors import ClientError
from headrace.config.names import nearest
from headrace.config.pipelines import DEFINITIONS

from .bundle import packed
from .model import ACTIVE, NAME, RUNNING, STOPPED, Deployment, ServiceReport, SparkSettings, State, Status
from .store import (
    LOGS,
    Definitions,
    LogLine,
    Statuses,
    TopicFollower,
    TopicWriter,
    deployment_record,
    log_line,
    require_definitions,
)

SILENT_MS: Final = 45_000
"""A service that was not heard of for so long is taken for dead."""
_FOLLOW_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A deployed pipeline as it is now. `told` is the state in words, which knows silence for what it is."""

    name: str
    deployment: Deployment | None
    status: Status | None
    told: str
    problem: str


def view_of(name: str, deployment: Deployment | None, status: Status | None, has_service: bool, now_ms: int) -> View:
    """What to say of a pipeline; statuses of those that died with their host are old."""
    told, problem = _told(deployment, status, has_service, now_ms)
    return View(name=name, deployment=deployment, status=status, told=told, problem=problem)


def _told(deployment: Deployment | None, status: Status | None, has_service: bool, now_ms: int) -> tuple[str, str]:
    nobody = "" if has_service else "no service runs; start one with `headrace pipeline service`"
    if deployment is None:
        return "deleted", ""
    if status is None or (status.revision != deployment.revision and status.state not in ACTIVE):
        return (State.WAITING.value if deployment.wanted == RUNNING else State.STOPPED.value), nobody
    if status.state in ACTIVE and now_ms - status.updated_ms > SILENT_MS:
        silent = (now_ms - status.updated_ms) // 1000
        then = nobody or "another one takes over if it reaches the checkpoint"
        return "silent", f"nothing was heard of the service on {status.host} for {silent} s; {then}"
    return status.state.value, status.problem or (nobody if status.state not in (State.STOPPED, State.DONE) else "")


class Deployments:
    """The deployed pipelines of a cluster."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._definitions = Definitions(cluster)
        self._statuses = Statuses(cluster)

    def deploy(self, name: str, file: str, files: dict[str, bytes], settings: SparkSettings) -> Deployment:
        """Keep a definition, in place of that of the name; services take it up within a second or two."""
        if not NAME.fullmatch(name):
            raise ClientError(
                f"'{name}' cannot be the name of a pipeline: letters, digits, '.', '_' and '-', 120 at most", "NAME"
            )
        made = self._stamped(Deployment(name=name, revision="", file=file, archive=packed(files), settings=settings))
        require_definitions(self._cluster)
        self._put(deployment_record(made))
        return made

    def want(self, name: str, wanted: str) -> Deployment:
        """Have a pipeline run (anew, if it does) or be stopped."""
        known = self.get(name)
        if known.wanted == wanted == STOPPED:
            return known
        changed = self._stamped(replace(known, wanted=wanted))
        self._put(deployment_record(changed))
        return changed

    def delete(self, name: str) -> None:
        """Forget a pipeline; what runs of it stops. Its checkpoint and what it wrote stay."""
        self.get(name)
        self._put((name.encode(), None))

    def get(self, name: str) -> Deployment:
        """The definition of a name; ClientError if there is none."""
        self._definitions.refresh()
        known = self._definitions.deployments
        if name in known:
            return known[name]
        if name in self._definitions.unreadable:
            raise ClientError(f"pipeline '{name}': {self._definitions.unreadable[name]}", "UNREADABLE")
        told = nearest(name, known) or "; `headrace pipeline list` shows those that are"
        raise ClientError(f"there is no deployed pipeline '{name}'{told}", "UNKNOWN_PIPELINE")

    def views(self) -> list[View]:
        """All pipelines by name."""
        self._definitions.refresh()
        self._statuses.refresh()
        now, has_service = self._now(), bool(self.services())
        names = sorted(self._definitions.deployments)
        found = [
            view_of(name, self._definitions.deployments[name], self._statuses.pipelines.get(name), has_service, now)
            for name in names
        ]
        unreadable = [
            View(name=name, deployment=None, status=None, told="unreadable", problem=problem)
            for name, problem in sorted(self._definitions.unreadable.items())
            if name not in self._definitions.deployments
        ]
        return found + unreadable

    def services(self) -> list[ServiceReport]:
        """Services that live, as of the last look at the statuses."""
        self._statuses.refresh()
        now = self._now()
        return [one for one in self._statuses.services.values() if now - one.updated_ms < SILENT_MS]

    def logs(self, name: str, since_ms: int, follow: bool) -> Iterator[LogLine]:
        """Lines of a pipeline from a time on; with `follow` without end."""
        follower = TopicFollower(self._cluster, LOGS)
        try:
            follower.skip_to(follower.start_of(since_ms))
        except UnknownTopic:
            pass
        while True:
            for entry in follower.read():
                line = log_line(entry) if entry is not None and entry.key == name.encode() else None
                if line is not None:
                    yield line
            if not follow:
                return
            time.sleep(_FOLLOW_SECONDS)

    def _stamped(self, deployment: Deployment) -> Deployment:
        by = f"{getpass.getuser()}@{socket.gethostname()}"
        return replace(deployment, revision=uuid.uuid4().hex, time_ms=self._now(), by=by)

    def _put(self, record: tuple[bytes, bytes | None]) -> None:
        writer = TopicWriter(self._cluster)
        try:
            writer.put(DEFINITIONS, [record])
        finally:
            writer.close()

    def _now(self) -> int:
        return int(self._clock() * 1000)
