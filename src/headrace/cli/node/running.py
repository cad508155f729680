"""The brokers of a machine under one supervisor."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import __version__

from ..console import note
from ..service_manager import ServiceManager
from ..supervisor import UNATTENDED, Child, Supervisor, announce, leave
from .control import ControlError, control_socket
from .plan import Worker


def run_node(workers: Sequence[Worker], common: Sequence[str], control: Path, *, json: bool) -> None:
    """Run these workers, with `common` arguments, until a signal; a `Failure` when one can never be started."""
    asyncio.run(_Node(workers, common).run(control, json))


class _Node:
    """A supervisor with the workers of this machine."""

    def __init__(self, workers: Sequence[Worker], common: Sequence[str]) -> None:
        self._workers = workers
        self._common = common
        self._manager = ServiceManager()
        self._supervisor = Supervisor(on_change=self._tell_status, watchdog_seconds=self._manager.watchdog_seconds)
        self._children: dict[int, Child] = {}

    async def run(self, control: Path, json: bool) -> None:
        supervisor = self._supervisor
        self._manager.keep_alive()
        async with supervisor:
            async with control_socket(control, self._answer):
                await self._start()
                if await supervisor.all_ready():
                    self._manager.ready(self._status())
                    kafka = ",".join(child.ready_value("kafka") for child in self._children.values())
                    announce({"kafka": kafka, "control": str(control)}, json)
                    await supervisor.finished()
            self._manager.stopping()
        leave(supervisor)

    async def _start(self) -> None:
        for worker in self._workers:
            self._children[worker.broker_id] = await self._supervisor.start(
                "broker", *self._common, *worker.arguments, name=worker.name, revival=UNATTENDED
            )

    def _status(self) -> str:
        ready = [broker for broker, child in self._children.items() if child.serves]
        missing = [str(broker) for broker in self._children if broker not in ready]
        return f"{len(ready)} of {len(self._workers)} brokers serve" + (
            f"; not ready: {', '.join(missing)}" if missing else ""
        )

    def _tell_status(self) -> None:
        self._manager.status(self._status())

    # The control socket

    async def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request.get("do"):
            case "describe":
                return self._description()
            case "restart":
                return await self._restart(request.get("broker"))
            case unknown:
                raise ControlError(f"it cannot {unknown!r}; it can describe and restart")

    def _description(self) -> Mapping[str, Any]:
        workers = [
            {
                "broker": broker,
                "pid": child.process.pid,
                "ready": child.serves,
                "starts": child.lives,
                "kafka": child.ready_value("kafka"),
            }
            for broker, child in self._children.items()
        ]
        return {"version": __version__, "rack": self._workers[0].settings["broker.rack"], "workers": workers}

    async def _restart(self, broker: object) -> Mapping[str, Any]:
        child = self._children.get(broker) if isinstance(broker, int) else None
        if child is None:
            raise ControlError(f"there is no broker {broker!r} here; there are {sorted(self._children)}")
        note(f"headrace: {child.title} is restarted, as asked")
        if not await self._supervisor.restart(child):
            raise ControlError(f"the node stops; broker {broker} was not started again")
        return {"broker": broker, "pid": child.process.pid, "starts": child.lives}
