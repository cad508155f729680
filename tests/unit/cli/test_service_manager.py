"""What a service manager is told (sd_notify)."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.service_manager import ServiceManager


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        yield listener


def manager_at(inbox: socket.socket, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": inbox.getsockname(), **more})


def test_readiness_status_and_stopping_are_told_in_systemds_words(inbox: socket.socket) -> None:
    async def serve() -> None:
        manager = manager_at(inbox)
        manager.ready("broker 1 serves")
        manager.status("1 of 2 brokers serve")
        manager.stopping()

    asyncio.run(serve())
    assert [inbox.recv(1024) for _ in range(3)] == [
        b"READY=1\nSTATUS=broker 1 serves",
        b"STATUS=1 of 2 brokers serve",
        b"STOPPING=1",
    ]


def test_the_watchdog_is_answered_again_and_again_from_the_loop(inbox: socket.socket) -> None:
    async def serve() -> list[bytes]:
        manager_at(inbox, WATCHDOG_USEC="20000").ready()
        read = asyncio.get_running_loop().run_in_executor
        return [await read(None, inbox.recv, 1024) for _ in range(4)]

    assert asyncio.run(serve()) == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_watchdog_for_another_process_is_not_ours(inbox: socket.socket) -> None:
    own = str(os.getpid())
    assert manager_at(inbox, WATCHDOG_USEC="3000000", WATCHDOG_PID=own).watchdog_seconds == 3.0
    assert manager_at(inbox, WATCHDOG_USEC="3000000", WATCHDOG_PID=f"{own}0").watchdog_seconds == 0
    assert ServiceManager({"WATCHDOG_USEC": "3000000"}).watchdog_seconds == 0


def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0headrace-test-{os.getpid()}")
        listener.settimeout(30)
        ServiceManager({"NOTIFY_SOCKET": f"@headrace-test-{os.getpid()}"}).stopping()
        assert listener.recv(1024) == b"STOPPING=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_nobody_has_to_listen(environment: dict[str, str]) -> None:
    ServiceManager(environment).stopping()
