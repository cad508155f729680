"""`headrace cluster restart`: one broker after the other, each step waiting for the full ISR."""

import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from headrace.client.errors import ClientError
from headrace.ops.health_reports import not_ready
from headrace.ops.overview import BrokerView, ClusterView
from headrace.ops.restarts import restart_order, short_name, unreplicated, waits_for

from ..console import Failure, bad_input, note, say, say_json
from ..node.control import SOCKET_NAME, ask

if TYPE_CHECKING:
    from headrace.ops.operations import Operations

POLL_SECONDS: Final = 0.5
TELL_SECONDS: Final = 10.0
"""Between two lines that say what is waited for, where that does not change."""
_ASK_SECONDS: Final = 10.0
DEFAULT_SOCKETS: Final = (Path("/run/headrace") / SOCKET_NAME, Path("data") / SOCKET_NAME)
"""Where the node of this machine is looked for: as our systemd unit has it, and as `headrace node` does by default."""


class Restarter(Protocol):
    """Restarts brokers by some means."""

    @property
    def brokers(self) -> frozenset[int] | None:
        """Those that it can restart; None where it can be tried with any."""
        ...

    def restart(self, broker: BrokerView, seconds: float) -> None:
        """Returns when the broker has stopped and serves again; a `Failure` where it does not within that time."""
        ...


class NodeRestarter:
    """Asks the supervisors of this machine by their control sockets."""

    def __init__(self, sockets: Iterable[Path]) -> None:
        self._socket_of: dict[int, Path] = {}
        for path in sockets:
            found = path / SOCKET_NAME if path.is_dir() else path
            for worker in ask(found, {"do": "describe"}, _ASK_SECONDS)["workers"]:
                self._socket_of[int(worker["broker"])] = found

    @property
    def brokers(self) -> frozenset[int]:
        return frozenset(self._socket_of)

    def restart(self, broker: BrokerView, seconds: float) -> None:
        ask(self._socket_of[broker.id], {"do": "restart", "broker": broker.id}, seconds)


class CommandRestarter:
    """Runs a command of the user's for each broker, with {broker}, {host}, {port} and {rack} filled in."""

    brokers = None

    def __init__(self, template: str) -> None:
        try:
            self._words = shlex.split(template)
            if not self._words:
                raise ValueError("it is empty")
            self._filled(BrokerView(id=1, host="host", port=1, rack="rack"))
        except (ValueError, KeyError, IndexError) as error:
            what = f"unknown placeholder {error}" if isinstance(error, KeyError) else str(error)
            raise bad_input(
                f"--with: {what}; write a command such as 'ssh {{host}} sudo systemctl restart headrace-broker', in "
                "which {broker}, {host}, {port} and {rack} stand for what they are"
            ) from None

    def restart(self, broker: BrokerView, seconds: float) -> None:
        words = self._filled(broker)
        try:
            code = subprocess.run(words, timeout=seconds, check=False, stdin=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            raise Failure(f"`{shlex.join(words)}` did not end within {seconds:g} s") from None
        except OSError as error:
            raise Failure(f"`{shlex.join(words)}` cannot be run: {error.strerror or error}") from error
        if code:
            raise Failure(f"`{shlex.join(words)}` failed with code {code}; broker {broker.id} may not serve")

    def _filled(self, broker: BrokerView) -> list[str]:
        values = {"broker": broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack or ""}
        return [word.format_map(values) for word in self._words]


def restarter_for(sockets: Sequence[Path], command: str | None) -> Restarter:
    """By the user's command, or by the nodes at these sockets, or by that of this machine where none is named."""
    if command is not None:
        if sockets:
            raise bad_input("--node and --with are two ways of restarting a broker; give one")
        return CommandRestarter(command)
    paths = list(sockets) or [path for path in DEFAULT_SOCKETS if path.exists()][:1]
    if not paths:
        raise bad_input(
            f"no node runs here (there is neither {DEFAULT_SOCKETS[0]} nor {DEFAULT_SOCKETS[1]}): name its data "
            "directory with --node, or give a command with --with, such as "
            "--with 'ssh {host} sudo systemctl restart headrace-broker'"
        )
    return NodeRestarter(paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOptions:
    """How to restart."""

    step_seconds: float
    """The longest that one step may take."""
    dry_run: bool = False
    json: bool = False


class RollingRestart:
    """Restarts brokers of a cluster, one after the other."""

    def __init__(self, operations: "Operations", restarter: Restarter, options: RestartOptions) -> None:
        self._operations = operations
        self._restarter = restarter
        self._options = options

    def run(self, brokers: Iterable[int]) -> None:
        """Those that are wanted, or all that can be restarted. Ends with a `Failure` as soon as a step does not
        succeed in time: what is left of the cluster is not touched.
        """
        view = self._operations.view()
        order = self._order(view, list(brokers))
        self._warn(view, order)
        if self._options.dry_run:
            self._report("planned", order, [])
            return
        expected = {broker.id for broker in view.brokers}
        self._await("before the first restart", expected, None)
        done: list[int] = []
        for number, broker in enumerate(order, 1):
            self._say(f"broker {broker} restarts ({number} of {len(order)})")
            self._restart(view, broker)
            self._await(f"after the restart of broker {broker}", expected, broker)
            done.append(broker)
        self._let_preferred_lead()
        self._report("restarted", order, done)

    def _order(self, view: ClusterView, brokers: list[int]) -> list[int]:
        able = self._restarter.brokers
        here = {broker.id for broker in view.brokers}
        for broker in brokers:
            if broker not in here:
                raise Failure(f"there is no broker {broker} in this cluster; there are {_numbers(here)}")
            if able is not None and broker not in able:
                raise Failure(f"broker {broker} is not one of this node's; these are {_numbers(able)}")
        if able is not None and not brokers and not able & here:
            raise Failure(f"the node's brokers {_numbers(able)} are not in this cluster; is --bootstrap right?")
        return restart_order(view, brokers or (here if able is None else able & here))

    def _warn(self, view: ClusterView, order: list[int]) -> None:
        alone = unreplicated(view, order)
        if alone:
            names = ", ".join(short_name(p) for p in alone[:3]) + (", …" if len(alone) > 3 else "")
            note(
                f"headrace: {len(alone)} partitions have no replica to spare ({names}): writes with acks=all to them "
                "wait while their broker restarts"
            )

    def _restart(self, view: ClusterView, broker: int) -> None:
        found = next(b for b in view.brokers if b.id == broker)
        self._restarter.restart(found, self._options.step_seconds)

    def _await(self, when: str, expected: Iterable[int], restarted: int | None) -> None:
        """Returns when nothing is waited for, in the eyes of the broker that was restarted: it has learnt all it knows
        in this life, whereas another one might not have heard yet that this one was gone.
        """
        deadline = time.monotonic() + self._options.step_seconds
        last_reason, told_at = "", 0.0
        while reason := self._reason(expected, restarted):
            now = time.monotonic()
            if now > deadline:
                raise Failure(
                    f"{when} this was waited for, longer than {self._options.step_seconds:g} s: {reason}; no further "
                    "broker was restarted"
                )
            if reason != last_reason or now - told_at > TELL_SECONDS:
                self._say(f"  waits for {reason}")
                last_reason, told_at = reason, now
            time.sleep(POLL_SECONDS)

    def _reason(self, expected: Iterable[int], restarted: int | None) -> str:
        try:
            view = self._operations.view(at=restarted)
            return waits_for(view, expected) or next(not_ready(self._operations.health(view)), "")
        except ClientError as error:
            return f"an answer of the cluster ({error.message})"

    def _let_preferred_lead(self) -> None:
        """So that the last broker leads as much as the first; who cannot lead yet will a little later."""
        try:
            self._operations.elect(None)
        except ClientError as error:
            note(f"headrace: preferred leaders were not elected ({error.message}); the cluster does so by itself")

    def _say(self, line: str) -> None:
        (note if self._options.json else say)(line)

    def _report(self, state: str, order: list[int], done: list[int]) -> None:
        if self._options.json:
            say_json({"state": state, "order": order, "restarted": done})
        elif state == "planned":
            say(f"order: {_numbers(order, keep=True)}; nothing was restarted")
        else:
            say(f"{len(done)} brokers restarted; all replicas are in sync")


def _numbers(brokers: Iterable[int], *, keep: bool = False) -> str:
    return ", ".join(map(str, brokers if keep else sorted(brokers)))
