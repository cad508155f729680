"""Brokers move to a listener of their own, with mutual TLS, by rolling restarts under load: nothing fails."""

import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from struct import pack

import pytest

from headrace.net.ports import HeldPort
from headrace.protocol.peer import InternalApi, PeerMessage, encode_message
from tests.support.certificates import Authority
from tests.support.faults.load import Load, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TOPIC = "moving"
PARTITIONS = 3
ESTABLISHED = "01"


def settings(port: int, inside: int, directory: Path, authority: Authority, number: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{inside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SSL",
        "listener.name.inside.ssl.client.auth": "required",
        "ssl.keystore.location": authority.sign(f"broker-{number}").write(directory / f"broker-{number}.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
    }


def connections_to(port: int) -> int:
    """Established connections of this machine to a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return sum(field[2].endswith(f":{port:04X}") and field[3] == ESTABLISHED for field in fields)


def is_closed_by(sock: socket.socket, api: int) -> bool:
    body = b"".join(bytes(part) for part in encode_message(PeerMessage({"cluster": "", "from": 9, "to": 1})))
    frame = pack(">hhih", api, 0, 5, -1) + body
    sock.sendall(pack(">i", len(frame)) + frame)
    return not sock.recv(1)


def is_refused(context: ssl.SSLContext, client: socket.socket) -> bool:
    """TLS 1.3 tells of a certificate that is lacking with the first bytes after the handshake."""
    try:
        with context.wrap_socket(client, server_hostname="localhost") as secured:
            return is_closed_by(secured, InternalApi.HELLO)
    except (ssl.SSLError, ConnectionError):
        return True


def test_brokers_move_to_a_listener_with_mutual_tls_without_a_failed_operation(tmp_path: Path) -> None:
    authority = Authority()
    authority.write(tmp_path / "ca.pem")
    with ExitStack() as held, ClusterProcesses(tmp_path, 3) as cluster:
        inside = {number: held.enter_context(HeldPort()).number for number in cluster.brokers}
        view = View(cluster.bootstrap, TOPIC)
        view.create([[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            for name in (None, "INSIDE"):
                for number, broker in cluster.brokers.items():
                    broker.settings = settings(broker.port, inside[number], tmp_path, authority, number)
                    if name is not None:
                        broker.settings["inter.broker.listener.name"] = name
                    assert broker.stop() == 0
                    broker.start()
                    view.wait_until_in_sync()
                    load.wait_for_answers(time.monotonic())
                    load.wait_for_reader()
                assert (sum(map(connections_to, inside.values())) > 0) is (name is not None)
            load.close()
            assert load.problems() == []
        wait_for_equal_replicas(cluster, TOPIC, dict.fromkeys(range(PARTITIONS), 3))
        for api in (InternalApi.HELLO, InternalApi.FEED):
            with socket.create_connection(("127.0.0.1", cluster[1].port), 10) as client:
                assert is_closed_by(client, api), "a listener for clients"
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with socket.create_connection(("127.0.0.1", inside[1]), 10) as client:
            assert is_refused(context, client), "a client without a certificate on the listener for brokers"
