"""The brokers that the suite starts for itself end with it, also those that never served."""

import os
import stat
from pathlib import Path

import pytest

from .. import broker
from ..broker import BrokerError, OwnBroker


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broker that writes down its process id, and is never ready; where it does so."""
    command = tmp_path / "headrace"
    command.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 600\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(broker, "_COMMAND", command)
    monkeypatch.setattr(broker, "_START_SECONDS", 1.0)
    return tmp_path / "started"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_broker_that_misses_its_start_is_not_left_running(silent: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokerError), OwnBroker(tmp_path / "work"):
        pytest.fail("it is never ready")
    assert not any(is_running(int(line)) for line in silent.read_text().split())
