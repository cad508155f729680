"""SIGHUP to running servers: the settings file of a broker, the certificate of a gateway."""

import os
import signal
import ssl
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.net.address import parse_address
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from tests.support.gateways import GatewayProcess
from tests.support.process import BrokerProcess, wait_for
from tests.support.wire import Wire

pytestmark = pytest.mark.slow


def reload(process: BrokerProcess | GatewayProcess, log: Path, words: str) -> str:
    """The line with these words that SIGHUP has it log."""
    seen = len(log.read_text())
    os.kill(process.pid, signal.SIGHUP)
    wait_for(words, lambda: words in log.read_text()[seen:])
    return next(line for line in log.read_text()[seen:].splitlines() if words in line)


def in_force(bootstrap: str, *names: str) -> list[str]:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_configs([resource]).values()
    found = future.result(30)
    return [found[name].value for name in names]


def test_a_broker_reads_its_file_again_and_says_what_came_of_it(tmp_path: Path) -> None:
    file, log = tmp_path / "server.properties", tmp_path / "log"
    before = "log.retention.hours=2\nnum.partitions=1\nnum.io.threads=8\n"
    file.write_text(before)
    with BrokerProcess(tmp_path / "data", options=["--config", str(file)], log=log) as broker:
        assert "settings=num.io.threads" in log.read_text().splitlines()[0]
        assert "changed=nothing" in reload(broker, log, "settings reloaded")
        file.write_text(before.replace("hours=2", "hours=3").replace("partitions=1", "partitions=4"))
        assert "settings=num.partitions" in reload(broker, log, "need a restart")
        assert 'changed="log.retention.hours 2 -> 3"' in log.read_text()
        assert in_force(broker.bootstrap, "log.retention.ms", "num.partitions") == ["10800000", "1"]
        file.write_text("log.retention.hours=9\nlog.retention=5\nwhat=1\n")
        refused = reload(broker, log, "settings refused")
        assert "did you mean log.retention" in refused
        assert "Unknown broker setting what" in refused
        file.unlink()
        assert "cannot be read" in reload(broker, log, "settings refused")
        assert in_force(broker.bootstrap, "log.retention.ms") == ["10800000"]
        assert broker.stop() == 0


def log_at(bootstrap: str, logger: str, level: str) -> None:
    config = {"name": logger, "config_operation": 0, "value": level}
    request = {"resources": [{"resource_type": 8, "resource_name": "1", "configs": [config]}], "validate_only": False}
    body = encode_request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    with Wire(bootstrap) as wire:
        wire.send_body(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, bytes(body))
        (answer,) = wire.receive(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1).responses
    assert answer.error_code is ErrorCode.none, answer.error_message


def test_a_running_broker_logs_at_the_level_that_it_is_told_to(tmp_path: Path) -> None:
    file, log = tmp_path / "server.properties", tmp_path / "log"
    file.write_text("")
    with BrokerProcess(tmp_path / "data", options=["--config", str(file), "--log-level", "error"], log=log) as broker:
        os.kill(broker.pid, signal.SIGHUP)
        log_at(broker.bootstrap, "headrace.server.settings_file", "INFO")
        assert "settings reloaded" not in log.read_text()
        reload(broker, log, "settings reloaded")
        log_at(broker.bootstrap, "headrace.server.settings_file", "ERROR")
        file.write_text("what=1")
        reload(broker, log, "settings refused")
        assert log.read_text().count("settings reloaded") == 1


def certify(folder: Path, name: str) -> None:
    parts = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}", *parts]
    subprocess.run(request, check=True, capture_output=True)


def test_a_gateway_takes_a_new_certificate_and_keeps_the_old_one_where_that_is_none(tmp_path: Path) -> None:
    certify(tmp_path, "first")
    log = tmp_path / "log"
    options = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    with GatewayProcess("127.0.0.1:1", log, *options) as gateway:
        address = parse_address(gateway.url.removeprefix("https://"))

        def shown() -> str:
            return ssl.get_server_certificate((address.host, address.port))

        first = shown()
        certify(tmp_path, "second")
        reload(gateway, log, "certificate reloaded")
        second = shown()
        assert second != first
        (tmp_path / "server.pem").write_text("no certificate")
        reload(gateway, log, "certificate refused")
        assert shown() == second
        assert gateway.stop() == 0
