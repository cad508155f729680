"""What goes wrong in a wild run, and how it is set right again."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace.cluster.membership import IdInUse
from headrace.cluster.store import StoreError
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import CRC_START, HEADER_SIZE, read_header
from headrace.protocol.peer import InternalApi
from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.checkpoints import RECOVERY_POINTS, decode_offsets
from headrace.storage.disk import StorageError
from headrace.testing.cluster import Died, Machine, SimulatedCluster
from headrace.testing.tree import TreeSnapshot
from tests.support.simulation.faults import RESTART_SECONDS, ClusterFaults

from .bugs import Bugs
from .ledger import Ledger
from .mix import Mix

QUIET_SECONDS: Final = 3.0
"""How long clients work after the last fault, before anything is set right."""
HELD: Final = (
    InternalApi.FEED,
    InternalApi.ALTER_ISR,
    InternalApi.REPLICATE,
    ApiKey.END_TXN,
    ApiKey.PRODUCE,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
)
ANSWERS: Final = {
    ApiKey.PRODUCE: ("idempotent", "plain", "acks=1", "transactions", "copier"),
    ApiKey.INIT_PRODUCER_ID: ("idempotent", "transactions", "copier"),
    ApiKey.END_TXN: ("transactions", "copier"),
    ApiKey.OFFSET_COMMIT: ("group",),
    ApiKey.DELETE_RECORDS: ("delete records",),
}
"""Answers that are worth a fault at that moment, and the work that gets them."""
DISK_ERRORS: Final = (
    ("append", ".log"),
    ("datasync", ".log"),
    ("append", "checkpoint"),
    ("rename", "checkpoint"),
    ("append", ".index"),
    ("append", ".snapshot"),
    ("pread", ".log"),
    ("sync_directory", "/data"),
    ("unlink", "/data"),
    ("create", "/data"),
)
JUMPS_MS: Final = (-1_800_000, -60_000, -2_000, 2_000, 60_000, 1_800_000)


class Faults(ClusterFaults):
    """Lets one thing after another go wrong, or right again."""

    def __init__(self, cluster: SimulatedCluster, mix: Mix, ledger: Ledger, bugs: Bugs) -> None:
        super().__init__(cluster, mix.seed)
        self.counts: dict[str, int] = {}
        self.complaints: list[str] = []
        """Of machines that could not be stopped or started as they should."""
        self._mix = mix
        self._ledger = ledger
        self._bugs = bugs
        self._under_way: set[asyncio.Task[None]] = set()
        self._starting: set[Machine] = set()
        self._answers = [api for api in mix.answers or ANSWERS if any(map(mix.does, ANSWERS[api]))]
        self._snapshot: TreeSnapshot | None = None
        self._has_quorum = True
        self._is_rolling = False
        self._is_over = False
        self._acts: dict[str, Callable[[Machine], str | None]] = {
            "kill": self._kill,
            "power loss": self._lose_power,
            "site power loss": self._lose_site,
            "full restart": self._restart_all,
            "kill on answer": self._kill_on_answer,
            "pause": self._pause,
            "stop": self._stop,
            "rolling restart": self._roll,
            "cut": self._cut,
            "cut one way": self._cut_one_way,
            "slow link": self._slow_link,
            "hold": self._hold,
            "lose answer": self._lose_answer,
            "store cut": self._cut_from_store,
            "store expiry": self._expire,
            "store link": self._drop_store_link,
            "store answer": self._lose_commit,
            "store commits": self._slow_commits,
            "store quorum": self._lose_quorum,
            "lagging feed": self._lag,
            "disk error": self._fail_disk,
            "disk full": self._fill_disk,
            "descriptors": self._take_descriptors,
            "lost directory": self._lose_directory,
            "lost disk": self._lose_disk,
            "bit rot": self._rot,
            "clock": self._jump,
            "store set back": self._set_store_back,
            "late commit": self._delay_commit,
            "task failure": self._fail_task,
        }

    async def run(self) -> None:
        """About half of them hard on the heels of the one before."""
        mix = self._mix
        if mix.latency:
            self._set_delays(mix.latency)
        if "slow link" in mix.faults:
            for one in self._names:
                for other in self._names:
                    self._network.delay(one, other, self._rng.choice((0.0, 0.0, 0.02, 0.1, 0.4)))
        for _ in range(mix.rounds):
            await asyncio.sleep(self._rng.uniform(0, 0.2 if self._rng.random() < 0.4 else 2 * mix.pace))
            self.one()
        await asyncio.sleep(max(2 * mix.pace, QUIET_SECONDS))

    def _set_delays(self, seconds: float) -> None:
        for one in self._names:
            for other in self._names:
                self._network.delay(one, other, seconds if one != other else 0.0)

    def one(self) -> None:
        kinds = list(self._mix.faults)
        for _ in range(20):
            if not kinds or self._rng.random() < 0.4:
                done = self._rng.choice(self._repairs())(self._victim())
                kind = "repair"
            else:
                kind = self._rng.choices(kinds, list(self._mix.faults.values()))[0]
                done = self._acts[kind](self._victim())
            if done is not None:
                self.counts[kind] = self.counts.get(kind, 0) + 1
                self._note(done)
                return

    def _repairs(self) -> list[Callable[[Machine], str | None]]:
        return [
            self._restart,
            self._restart,
            self._resume,
            self._heal_links,
            self._heal_store,
            self._release,
            self._heal_disk,
            self._regain_quorum,
        ]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.complaints.append(f"broken: {task.exception()}")

    # Machines

    def _kill_on_answer(self, machine: Machine) -> str:
        """The worst moment: somebody has just been told that something is done."""
        api = self._rng.choice(self._answers)
        everyone = self._rng.random() < self._mix.all_die

        def strike() -> None:
            if self._is_over:
                return
            self._note(f"{machine.name} has answered {api.name}: kill {'all' if everyone else machine.name}")
            self._restart_all(machine) if everyone else self._kill(machine)

        self._network.when_answered(strike, api, answerer=machine.name)
        return f"kill {'all' if everyone else machine.name} when {machine.name} has answered {api.name}"

    def _lose_power(self, machine: Machine) -> str | None:
        if not machine.is_up:
            return None
        self._ledger.lose_power([machine])
        return f"power loss of {machine.name}"

    def _lose_site(self, _machine: Machine) -> str | None:
        some = [machine for machine in self._cluster if machine.is_up]
        if self._rng.random() < 0.4:
            some = [machine for machine in some if self._rng.random() < 0.6]
        if not some:
            return None
        self._ledger.lose_power(some)
        for machine in some:
            self._spawn(self._start_later(machine, self._rng.uniform(0, 4)))
        return f"power loss of {', '.join(machine.name for machine in some)}"

    def _restart_all(self, _machine: Machine) -> str | None:
        some = [machine for machine in self._cluster if machine.is_up]
        if not some:
            return None
        for machine in some:
            machine.kill()
            self._spawn(self._start_later(machine, self._rng.uniform(0, 3)))
        return "kill all"

    async def _start_later(self, machine: Machine, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.start(machine)

    def _pause(self, machine: Machine) -> str | None:
        if not machine.is_up or machine.is_paused or machine not in self._ready:
            return None
        machine.pause()
        if self._mix.pause_seconds is not None:
            seconds = self._rng.uniform(*self._mix.pause_seconds)
            asyncio.get_running_loop().call_later(seconds, self._resume, machine)
        return f"pause {machine.name}"

    def _stop(self, machine: Machine) -> str | None:
        if not self._can_stop(machine):
            return None
        self._spawn(self._stop_slowly(machine))
        return f"stop {machine.name}"

    def _can_stop(self, machine: Machine) -> bool:
        is_well = machine.is_up and not machine.is_paused and not machine.is_stopping
        return is_well and machine in self._ready and self._has_quorum

    def _roll(self, _machine: Machine) -> str | None:
        if self._is_rolling or not self._has_quorum:
            return None
        self._is_rolling = True
        self._spawn(self._roll_all())
        return "rolling restart"

    async def _roll_all(self) -> None:
        for machine in self._cluster:
            if self._can_stop(machine):
                await self._stop_slowly(machine)
                await self.start(machine)
                await asyncio.sleep(self._rng.uniform(0, 2))
        self._is_rolling = False

    def _restart(self, machine: Machine) -> str | None:
        if machine.is_up or machine in self._starting:
            return None
        self._spawn(self.start(machine))
        return f"start {machine.name}"

    async def start(self, machine: Machine) -> None:
        """As a supervisor does it: again until it comes up, or is killed. Nothing, where it is up or about to be."""
        if machine.is_up or machine in self._starting:
            return
        self._ready.discard(machine)
        self._starting.add(machine)
        try:
            await self._start(machine)
        finally:
            self._starting.discard(machine)

    async def _start(self, machine: Machine) -> None:
        while True:
            try:
                await machine.start()
            except Died:
                return
            except (OSError, StoreError, StorageError, IdInUse) as error:
                self._note(f"{machine.name} did not start: {error!r}")
                await asyncio.sleep(RESTART_SECONDS)
            else:
                self._ready.add(machine)
                return

    def _fail_task(self, _machine: Machine) -> str | None:
        if len(self._ready) < len(self._names):
            return None  # a start may fail, and says so
        name = self._bugs.strike(self._rng)
        return None if name is None else f"a background task fails: {name}"

    def _jump(self, machine: Machine) -> str:
        machine.set_clock(self._rng.choice(JUMPS_MS))
        return f"the clock of {machine.name} is off by {machine.skew_ms} ms"

    # The network

    def _slow_link(self, machine: Machine) -> str | None:
        other = self._other(machine)
        if other is None:
            return None
        seconds = self._rng.choice((0.0, 0.02, 0.3, 1.0, 3.0))
        self._network.delay(machine.name, other, seconds)
        return f"delay {machine.name}>{other} by {seconds}"

    def _hold(self, machine: Machine) -> str:
        api = self._rng.choice(HELD)
        asker = machine.name if isinstance(api, InternalApi) else None
        self._held.append(self._network.hold(api, asker=asker, answerer=None if asker else machine.name))
        return f"hold {api.name} of {asker or 'anyone'}"

    def _lag(self, machine: Machine) -> str:
        self._held.append(self._network.hold(InternalApi.FEED, asker=machine.name))
        return f"hold the feed of {machine.name}"

    def _lose_answer(self, machine: Machine) -> str:
        api = self._rng.choice(self._answers)
        self._network.lose_answer(api, answerer=machine.name)
        return f"lose an answer to {api.name} of {machine.name}"

    # The store

    def _is_connected(self, machine: Machine) -> bool:
        return super()._is_connected(machine) and machine in self._ready

    def _lose_commit(self, machine: Machine) -> str | None:
        return super()._lose_commit(machine) if self._is_connected(machine) else None

    def _delay_commit(self, _machine: Machine) -> str | None:
        """The controller is not told of its next commit, resigns, and has a successor when the commit is done."""
        controller = self._cluster.controller()
        if controller is None or not self._is_connected(controller):
            return None
        seconds = self._rng.choice([0.5, 2.0, 4.0])
        self._cluster.ensemble.commit_late(controller.store, seconds)
        return f"the next commit of {controller.name}, the controller, happens {seconds} s later, and is not answered"

    def _slow_commits(self, machine: Machine) -> str | None:
        return super()._slow_commits(machine) if self._is_connected(machine) else None

    def _lose_quorum(self, _machine: Machine) -> str | None:
        if not self._has_quorum:
            return None
        self._has_quorum = False
        self._cluster.ensemble.lose_quorum()
        return "the store loses its quorum"

    def _regain_quorum(self, _machine: Machine) -> str | None:
        if self._has_quorum:
            return None
        self._has_quorum = True
        self._cluster.ensemble.regain_quorum()
        return "the store regains its quorum"

    def _set_store_back(self, _machine: Machine) -> str | None:
        if self._snapshot is None:
            self._snapshot = self._cluster.ensemble.tree.snapshot()
            return "back up the store"
        if not self._has_quorum:
            return None
        snapshot, self._snapshot = self._snapshot, None
        if not self._ledger.set_back(snapshot):
            return None
        return "set the store back to its backup"

    # Disks

    def _fail_disk(self, machine: Machine) -> str:
        kind, path = self._rng.choice(DISK_ERRORS)
        number = self._rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        times = self._rng.choice((1, 1, 3))
        machine.disk.fail(number, kind=kind, path=path, after=self._rng.choice((0, 0, 3)), times=times)
        return f"{errno.errorcode[number]} of the next {times} {kind} of {path} on {machine.name}"

    def _fill_disk(self, machine: Machine) -> str:
        disk = machine.disk
        disk.capacity = sum(len(disk.content(path)) for path in disk.paths("/")) + self._rng.choice((0, 10, 300, 2000))
        return f"fill the disk of {machine.name}"

    def _take_descriptors(self, machine: Machine) -> str:
        for kind in ("open", "create"):
            machine.disk.fail(errno.EMFILE, kind=kind, times=1 << 30)
        return f"no descriptors are left on {machine.name}"

    def _heal_disk(self, machine: Machine) -> str:
        machine.disk.heal()
        machine.disk.capacity = 1 << 50
        return f"heal the disk of {machine.name}"

    def _down_with_logs(self) -> tuple[Machine, list[str]] | None:
        """A machine that is down, and the directories of partitions that others hold, too."""
        down = [(machine, self._ledger.replicated(machine)) for machine in self._cluster if not machine.is_up]
        down = [(machine, logs) for machine, logs in down if logs]
        return self._rng.choice(down) if down else None

    def _lose_directory(self, machine: Machine) -> str | None:
        found = self._down_with_logs()
        if found is None:
            return self._kill(machine)
        path = self._rng.choice(found[1])
        self._ledger.lose_directory(found[0], path)
        return f"remove {path} of {found[0].name}"

    def _lose_disk(self, machine: Machine) -> str | None:
        found = self._down_with_logs()
        if found is None:
            return self._kill(machine)
        self._ledger.lose_disk(found[0])
        return f"a new disk for {found[0].name}"

    def _rot(self, machine: Machine) -> str | None:
        found = self._down_with_logs()
        if found is None:
            return self._kill(machine)
        victim, logs = found
        paths = [p for log in logs for p in victim.disk.paths(log) if p.endswith(".log") and victim.disk.content(p)]
        if not paths:
            return None
        path = self._rng.choice(paths)
        data = victim.disk.content(path)
        positions = _checked_bytes(data, _recovery_point(victim, path))
        if not positions:
            return None
        position = self._rng.choice(positions)
        byte = data[position] ^ (1 << self._rng.randrange(8))
        self._ledger.damage(victim, path, position, bytes([byte]))
        return f"a bit of {path} at {position} of {victim.name} flips"

    # The end

    async def set_right(self) -> None:
        """Everything is whole again, and everyone up."""
        cluster = self._cluster
        self._is_over = True
        self._network.heal()
        for hold in self._held:
            hold.release()
        self._set_delays(self._mix.latency)
        self._regain_quorum(cluster[0])
        for machine in cluster:
            self._heal_disk(machine)
            machine.set_clock(0)
            if machine.is_up and machine in self._ready:
                cluster.ensemble.delay_commits(machine.store, 0.0)
            if machine.is_up and machine.is_cut_from_store:
                machine.heal_store()
            if machine.is_up and machine.is_paused:
                machine.resume()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=60)
        assert not self._under_way, f"these do not start or stop: {self._under_way}"
        for machine in cluster:
            await self.start(machine)
        self._note("everything is set right")


def _recovery_point(machine: Machine, path: str) -> int:
    """Up to where the broker knows that its log is on disk. What is younger has not had the time to decay."""
    topic, _, index = path.rpartition("/")[0].rpartition("/")[2].rpartition("-")
    checkpoint = f"/data/{RECOVERY_POINTS}"
    data = machine.disk.content(checkpoint) if machine.disk.exists(checkpoint) else b""
    return (decode_offsets(data) or {}).get(TopicPartition(topic, int(index)), 0)


def _checked_bytes(data: bytes, before: int) -> list[int]:
    """Where in a log file the bytes are that checksums stand for, of batches before an offset."""
    found: list[int] = []
    start = 0
    while start + HEADER_SIZE <= len(data) and start + (size := read_header(data, start).size) <= len(data):
        if read_header(data, start).last_offset >= before:
            break
        found += range(start + CRC_START, start + size)
        start += size
    return found
