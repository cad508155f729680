"""`headrace cert`: certificates that the strictest checks take, and keys that only their owner reads."""

import json
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.cli import Run


@pytest.fixture
def secrets(run: Run, tmp_path: Path) -> Path:
    assert run("cert", "ca", "--out", str(tmp_path / "s")).exit_code == 0
    return tmp_path / "s"


def issue(run: Run, secrets: Path, *arguments: str) -> dict[str, str]:
    result = run("cert", "issue", *arguments, "--ca", str(secrets), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, str] = json.loads(result.stdout)
    return found


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """What the server knows of the client: its CN; `SSLError` where they do not take each other."""
    ours, theirs = socket.socketpair()
    failures: list[Exception] = []

    def connect() -> None:
        try:
            with client.wrap_socket(theirs, server_hostname=name) as stream:
                stream.recv(1)
        except (ssl.SSLError, OSError) as error:
            failures.append(error)
            theirs.close()

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        with server.wrap_socket(ours, server_side=True) as stream:
            stream.send(b"x")
            shown = stream.getpeercert() or {}
    except (ssl.SSLError, OSError):
        shown = {}
    finally:
        ours.close()
        thread.join()
    if failures:
        raise failures[0]
    return next(
        (value for part in cast(Any, shown.get("subject", ())) for key, value in part if key == "commonName"), ""
    )


def server_context(broker: dict[str, str], secrets: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(secrets / "ca.pem"))
    context.load_cert_chain(broker["keystore"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def client_context(client: dict[str, str], secrets: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secrets / "ca.pem"))
    context.load_cert_chain(client["certificate"], client["key"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def test_broker_and_client_take_each_other_by_the_strictest_checks(run: Run, secrets: Path) -> None:
    broker = issue(run, secrets, "broker-1", "--host", "broker-1.example.com", "--host", "127.0.0.1", "--host", "::1")
    client = issue(run, secrets, "alice", "--client")
    server, mine = server_context(broker, secrets), client_context(client, secrets)
    for name in ("broker-1.example.com", "127.0.0.1", "::1"):
        assert handshake(server, mine, name) == "alice"
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(server, mine, "other.example.com")


def test_a_clients_certificate_is_none_for_a_broker(run: Run, secrets: Path) -> None:
    client = issue(run, secrets, "alice", "--client")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(server_context(client, secrets), client_context(client, secrets), "alice")


def test_files_with_keys_are_for_their_owner_alone(run: Run, secrets: Path) -> None:
    issue(run, secrets, "broker-1", "--host", "127.0.0.1")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in secrets.iterdir()}
    private = {"ca.key": 0o600, "broker-1.key": 0o600, "broker-1.keystore.pem": 0o600}
    assert modes == {**private, "ca.pem": 0o644, "broker-1.pem": 0o644}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700


def test_an_authority_is_never_replaced(run: Run, secrets: Path) -> None:
    before = (secrets / "ca.pem").read_bytes()
    again = run("cert", "ca", "--out", str(secrets))
    assert (again.exit_code, "is there already" in again.stderr) == (1, True)
    assert (secrets / "ca.pem").read_bytes() == before


def test_a_certificate_of_the_same_name_is_renewed(run: Run, secrets: Path) -> None:
    first = Path(issue(run, secrets, "broker-1", "--host", "127.0.0.1")["keystore"]).read_bytes()
    assert Path(issue(run, secrets, "broker-1", "--host", "127.0.0.1")["keystore"]).read_bytes() != first


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl on the path")
def test_openssl_takes_the_chain(run: Run, secrets: Path) -> None:
    broker = issue(run, secrets, "broker-1", "--host", "127.0.0.1")
    command = ["openssl", "verify", "-x509_strict", "-CAfile", str(secrets / "ca.pem"), broker["certificate"]]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("OK\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["broker-1"], "give --host"),
        (["broker-1", "--client", "--host", "a"], "give --host"),
        (["../broker", "--host", "127.0.0.1"], "it becomes a file"),
        (["ca", "--host", "127.0.0.1"], "is not free"),
        (["x" * 65, "--host", "127.0.0.1"], "1 to 64"),
        (["broker-1", "--host", "a b"], "neither an address nor a name"),
        (["broker-1", "--host", "127.0.0.1", "--days", "36500"], "fewer --days"),
    ],
)
def test_what_is_wrong_is_told(run: Run, secrets: Path, arguments: list[str], expected: str) -> None:
    result = run("cert", "issue", *arguments, "--ca", str(secrets))
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_without_an_authority_it_says_how_to_make_one(run: Run, tmp_path: Path) -> None:
    result = run("cert", "issue", "b", "--host", "127.0.0.1", "--ca", str(tmp_path))
    assert (result.exit_code, "headrace cert ca" in result.stderr) == (1, True)
