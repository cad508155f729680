"""`headrace pipeline service`: looks at the topics, starts and stops runners, and says how they are.

One thread does all of it; runners are processes whose words come through an inbox. While no broker answers, runners go
on as they are (each of them minds its own lease), and what there is to say is said later.
"""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from headrace.client.columnar.cluster import Cluster
from headrace.client.errors import ClientError
from headrace.metrics.exposition import Page

from ..pipeline.failures import PipelineFailed
from ..pipeline.lease import TOPIC as LEASES
from ..pipeline.lease import LeaseState, require_lease_topic
from ..pipeline.paths import is_remote
from ..pipeline.reach import PATIENCE
from .bundle import BadBundle, place
from .log_queue import LogQueue
from .metrics import page_of
from .model import Deployment, ServiceReport, State, Status
from .runner import Ended, Inbox, Runner, RunnerRequest, Said
from .store import LOGS as LOG_TOPIC
from .store import STATUSES as STATUS_TOPIC
from .store import (
    Definitions,
    Statuses,
    TopicFollower,
    TopicWriter,
    forgotten_service,
    forgotten_status,
    require_topics,
    service_record,
    status_record,
)
from .supervision import Here, LeaseView, Step, Supervision

LOOK_SECONDS: Final = 1.0
_TURN_SECONDS: Final = 0.25
_SIGN_OF_LIFE_SECONDS: Final = 10.0
_FORGET_MS: Final = 86_400_000
"""Services that were not heard of for so long are forgotten."""
_BOUND_LOGS_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 60.0
_HOME: Final = "service.id"
_STATUSES_OF_THE_DEAD_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What the caller of a service may choose."""

    client: Mapping[str, str]
    """Settings of a client of the cluster that keeps the pipelines."""
    data: Path
    checkpoints: str | None = None
    """Where checkpoints are that other services can reach as well; otherwise with the data."""
    most: int = 0
    """Runners at a time; 0 is no bound."""


class Leases:
    """Who runs which pipeline, as the topic of leases tells."""

    def __init__(self, cluster: Cluster) -> None:
        self._follower = TopicFollower(cluster, LEASES)
        self._states: dict[str, LeaseState] = {}
        self._heard: dict[str, tuple[int, int]] = {}
        """How many records of a holder were seen, and when the last of them was."""

    def follow(self, names: set[str]) -> None:
        """Look at the leases of these pipelines too, from the first record on."""
        if names != self._states.keys():
            self._states = {name: LeaseState(lease_of(name)) for name in names}
            self._follower = TopicFollower(self._follower.cluster, LEASES)

    def refresh(self, now_ms: int) -> None:
        """Take in what was written since."""
        for entry in self._follower.read():
            if entry is None:
                self._states = {name: LeaseState(lease_of(name)) for name in self._states}
                continue
            for state in self._states.values():
                with suppress(ValueError, TypeError):  # a record of a version that is not known here
                    state.take(entry)
        for name, state in self._states.items():
            if self._heard.get(name, (-1, 0))[0] != state.records:
                self._heard[name] = (state.records, now_ms)

    def view(self, name: str, now_ms: int) -> LeaseView:
        """Who has a pipeline's lease."""
        state = self._states.get(name)
        if state is None or state.holder is None:
            return LeaseView()
        silent = now_ms - self._heard.get(name, (0, now_ms))[1]
        return LeaseView(holder=state.holder.id, host=state.holder.host, silent_ms=silent)


def lease_of(name: str) -> str:
    """The name of the lease of a deployed pipeline; no checkpoint has such a path."""
    return f"deployed pipeline {name}"


class PipelineService:
    """Runs what is deployed, as long as nobody else does."""

    def __init__(
        self, options: ServiceOptions, say: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self.options = options
        self.id = uuid.uuid4().hex
        self.supervised: dict[str, Supervision] = {}
        self.runners: dict[str, Runner] = {}
        self.metrics_address = ""
        self._say = say
        self._clock = clock
        self._since_ms = self._now()
        self._inbox: Inbox = SimpleQueue()
        self._cluster = Cluster({**options.client, **PATIENCE})
        self._definitions = Definitions(self._cluster)
        self._statuses = Statuses(self._cluster)
        self._leases = Leases(self._cluster)
        self._writer = TopicWriter(self._cluster)
        self._logs = LogQueue(self.id, self._now)
        self._is_cut_off = False
        self._told_unreadable: dict[str, str] = {}
        options.data.mkdir(parents=True, exist_ok=True)
        self._home = _home(options.data)
        self._here = Here(id=self.id, host=socket.gethostname(), process=getpid(), home_of=self._home_of)

    def page(self, accept: str) -> Page:
        """A scrape of Prometheus', in a thread of its own: of values that are replaced, never changed."""
        mine = [one.status for one in list(self.supervised.values()) if one.is_ours]
        deployed = len(self._definitions.deployments)
        return page_of(deployed, len(self.runners), self._is_cut_off, mine, accept)

    def prepare(self) -> None:
        """Make the topics that are missing and read what there is; ClientError if that cannot be."""
        require_topics(self._cluster)
        try:
            require_lease_topic(self._cluster)
        except PipelineFailed as error:
            raise ClientError(str(error)) from error
        self._look()

    def run(self, stop: threading.Event) -> None:
        """Until a stop is asked for; then runners stop in good order and their leases are free."""
        next_look = next_sign = next_bound = 0.0
        while not stop.is_set():
            now = time.monotonic()
            self._hear(_TURN_SECONDS)
            if now >= next_look:
                next_look = now + LOOK_SECONDS
                self._turn()
            if now >= next_sign and not self._is_cut_off:
                next_sign = now + _SIGN_OF_LIFE_SECONDS
                self._sign_of_life()
            if now >= next_bound:
                next_bound = now + _BOUND_LOGS_SECONDS
                for runner in self.runners.values():
                    runner.bound_log()
        self._finish()

    def _turn(self) -> None:
        try:
            self._look()
            if self._is_cut_off:
                self._is_cut_off = False
                self._say("the brokers answer again")
        except ClientError as error:
            if not self._is_cut_off:
                self._is_cut_off = True
                self._say(f"the definitions of pipelines cannot be read; what runs, runs on: {error.message}")
        else:
            for name, supervision in list(self.supervised.items()):
                self._step(name, supervision)
            self._forget_deleted()
        self._write()

    def _look(self) -> None:
        """Take in what the topics say."""
        self._definitions.refresh()
        before = dict(self._statuses.pipelines)
        self._statuses.refresh()
        for name in self._definitions.deployments.keys() - self.supervised.keys():
            self.supervised[name] = Supervision(name, self._here)
            before.pop(name, None)
        for name, status in self._statuses.pipelines.items():
            if name in self.supervised and before.get(name) is not status:
                self.supervised[name].learn(status)
        self._leases.follow(set(self._definitions.deployments))
        self._leases.refresh(self._now())
        if self._definitions.unreadable != self._told_unreadable:
            for name, problem in self._definitions.unreadable.items():
                if self._told_unreadable.get(name) != problem:
                    self._say(f"pipeline {name!r}: {problem}")
            self._told_unreadable = dict(self._definitions.unreadable)

    def _step(self, name: str, supervision: Supervision) -> None:
        now, wanted = self._now(), self._definitions.deployments.get(name)
        runner = self.runners.get(name)
        step = supervision.next_step(wanted, self._leases.view(name, now), now, len(self.runners))
        if step is Step.START and wanted is not None:
            if not self.options.most or len(self.runners) < self.options.most:
                self._start(wanted, supervision)
        elif step is Step.STOP and runner is not None:
            self._note(name, "stopping")
            runner.stop()
        elif step is Step.KILL and runner is not None:
            self._note(name, "it did not stop in time and is killed")
            runner.kill()

    def _start(self, wanted: Deployment, supervision: Supervision) -> None:
        directory = self.options.data / wanted.name
        try:
            files = wanted.files()
            place(files, directory / "work")
            request = self._request(wanted, directory, supervision.dead)
            runner = Runner(request, directory / "work", self._inbox)
        except (BadBundle, OSError, ValueError) as error:
            self._note(wanted.name, f"cannot be started: {error}")
            supervision.cannot_start(wanted, str(error), self._now(), is_mistake=isinstance(error, BadBundle))
            return
        self.runners[wanted.name] = runner
        supervision.started(wanted, runner.id, request.remote or request.master, self._now())
        self._note(wanted.name, f"starting on {self._here.host} (process {runner.pid})")

    def _request(self, wanted: Deployment, directory: Path, dead: tuple[str, ...]) -> RunnerRequest:
        settings = wanted.settings
        return RunnerRequest(
            file=str(directory / "work" / wanted.file),
            name=wanted.name,
            bootstrap=settings.bootstrap or "",
            master=settings.master,
            remote=settings.remote,
            conf=settings.conf,
            checkpoint=settings.checkpoint or f"{self._checkpoints}/{wanted.name}{self._beside_work}",
            runner_id=uuid.uuid4().hex,
            lease=lease_of(wanted.name),
            client=self.options.client,
            dead=dead,
        )

    @property
    def _checkpoints(self) -> str:
        return (self.options.checkpoints or str(self.options.data.resolve())).rstrip("/")

    @property
    def _beside_work(self) -> str:
        return "" if self.options.checkpoints else "/checkpoint"

    def _home_of(self, wanted: Deployment) -> str:
        """Where the checkpoint is: by its address if all services reach it, else with these data."""
        if wanted.settings.checkpoint:
            chosen = wanted.settings.checkpoint
            return chosen if is_remote(chosen) else f"{chosen} on {self._here.host}"
        return self.options.checkpoints or f"in {self.options.data.resolve()} on {self._home}"

    # What runners say

    def _hear(self, timeout: float) -> None:
        try:
            self._take(self._inbox.get(timeout=timeout))
            while True:
                self._take(self._inbox.get_nowait())
        except Empty:
            return

    def _take(self, word: Said | Ended) -> None:
        supervision, runner = self.supervised.get(word.pipeline), self.runners.get(word.pipeline)
        if supervision is None or runner is None or runner.id != word.runner:
            return
        if isinstance(word, Said):
            if word.event is not None:
                supervision.heard(word.event, self._now())
            if word.line:
                self._logs.add(word.pipeline, word.line)
            return
        runner.join()
        del self.runners[word.pipeline]
        supervision.ended(word.runner, word.code, word.last_words, self._now())
        status = supervision.status
        elsewhere = not supervision.is_ours
        if elsewhere and (known := self._statuses.pipelines.get(word.pipeline)) is not None:
            supervision.learn(known)
        pause = f", starts again in {(status.next_start_ms - self._now()) / 1000:.0f} s" if status.failures else ""
        self._note(
            word.pipeline,
            "runs elsewhere"
            if elsewhere
            else f"{status.state.value}{f': {status.problem}' if status.problem else ''}{pause}",
        )

    def _note(self, pipeline: str, text: str) -> None:
        self._logs.add(pipeline, f"service: {text}")
        self._say(f"pipeline {pipeline}: {text}")

    # What is written

    def _write(self) -> None:
        now = self._now()
        reports = [(one, report) for one in self.supervised.values() if (report := one.report(now)) is not None]
        lines = self._logs.take()
        try:
            self._writer.put(STATUS_TOPIC, [status_record(report) for _, report in reports])
        except ClientError:
            for supervision, _ in reports:
                supervision.unreported()
        try:
            self._writer.put(LOG_TOPIC, [line.record() for line in lines])
        except ClientError:
            self._logs.give_back(lines)

    def _sign_of_life(self) -> None:
        now = self._now()
        report = ServiceReport(
            id=self.id,
            host=self._here.host,
            process=self._here.process,
            since_ms=self._since_ms,
            updated_ms=now,
            pipelines=len(self.runners),
            metrics=self.metrics_address,
        )
        old = [one for one, said in self._statuses.services.items() if now - said.updated_ms > _FORGET_MS]
        with suppress(ClientError):
            self._writer.put(STATUS_TOPIC, [service_record(report), *map(forgotten_service, old)])

    def _forget_deleted(self) -> None:
        """Pipelines that are deleted and no longer run have no status."""
        known = self._definitions.deployments.keys()
        for name in [name for name, one in self.supervised.items() if name not in known and not one.runs]:
            del self.supervised[name]
        now = self._now()
        gone = [
            name
            for name, status in self._statuses.pipelines.items()
            if name not in known
            and name not in self.supervised
            and (status.service == self.id or _is_quiet(status) or now - status.updated_ms > _STATUSES_OF_THE_DEAD_MS)
        ]
        with suppress(ClientError):
            self._writer.put(STATUS_TOPIC, map(forgotten_status, gone))

    def _finish(self) -> None:
        for runner in self.runners.values():
            runner.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        ours = list(self.runners)
        while self.runners and time.monotonic() < deadline:
            self._hear(_TURN_SECONDS)
        for runner in list(self.runners.values()):
            runner.kill()
        while self.runners:
            self._hear(_TURN_SECONDS)
        for name in ours:
            self.supervised[name].released(self._now())
        self._write()
        with suppress(ClientError):
            self._writer.put(STATUS_TOPIC, [forgotten_service(self.id)])
        self._writer.close()
        self._cluster.close()

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _is_quiet(status: Status) -> bool:
    return status.state not in (State.STARTING, State.RUNNING, State.STOPPING)


def _home(data: Path) -> str:
    """A name of the data directory, the same for all services that share it."""
    file = data / _HOME
    try:
        with file.open("x") as out:
            out.write(f"{socket.gethostname()} ({uuid.uuid4().hex[:8]})")
    except FileExistsError:
        pass
    return file.read_text().strip()
