"""What brokers keep in a real ZooKeeper is theirs alone: over TLS, with credentials, and ACLs on every znode."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from headrace.cluster.store import Create, Put, SessionState, StoreError
from headrace.cluster.zookeeper import ZooKeeperStore
from headrace.cluster.zookeeper_access import OPEN, ZooKeeperAccess, access_of
from headrace.config import BrokerConfig, ConfigError
from headrace.net.ports import free_ports
from tests.support.certificates import Authority
from tests.support.cli import Run
from tests.support.maven import Artifact, Unavailable, fetched
from tests.support.process import wait_for
from tests.support.zookeeper import Service, client_of

pytestmark = pytest.mark.slow

OURS = ZooKeeperAccess(login="brokers:s3cret", sets_acl=True)
KNOWN = ZooKeeperAccess(login="brokers:s3cret")
OTHERS = ZooKeeperAccess(login="brokers:guess")
PATIENCE = 10.0


@asynccontextmanager
async def opened(url: str, access: ZooKeeperAccess, *, patience: float = PATIENCE) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open(url, session_timeout=10.0, patience=patience, access=access)
    try:
        yield store
    finally:
        await store.close()


def acls(address: str, root: str) -> dict[str, set[str]]:
    """The schemes and permissions on every znode below a path, as ZooKeeper's administrator sees them."""
    client = KazooClient(address, auth_data=[("digest", "brokers:s3cret")])
    client.start(30)
    found: dict[str, set[str]] = {}
    left = [root]
    while left:
        path = left.pop()
        entries, _ = client.get_acls(path)
        found[path] = {f"{entry.id.scheme}:{entry.perms}" for entry in entries}
        left += [f"{path}/{name}" for name in client.get_children(path)]
    client.stop()
    client.close()
    return found


async def acls_of(service: Service, url: str) -> dict[str, set[str]]:
    root = url.partition(service.address)[2]
    return await asyncio.get_running_loop().run_in_executor(None, acls, service.address, root)


def own_url(service: Service) -> str:
    """A path at the top: what is above a cluster's path is its own, too, where it makes it."""
    return service.new_url().replace("/test/", "/secure-")


async def fill(store: ZooKeeperStore) -> None:
    """Keys, znodes that are none, and one that goes with the session."""
    await store.commit([Create("/topics/a/b/c", b"1"), Create("/x", b"2")])
    await store.commit([Put("/x", b"3", 0), Create("/brokers/ids/1", b"{}", ephemeral=True)])


def test_every_znode_is_the_brokers_own_and_nobody_elses(zookeeper: Service) -> None:
    async def main() -> None:
        url = own_url(zookeeper)
        async with opened(url, OURS) as store:
            await fill(store)
            found = await acls_of(zookeeper, url)
            assert len(found) == 9
            assert set(map(frozenset, found.values())) == {frozenset({"digest:31"})}
            for access in (OPEN, OTHERS):
                async with opened(url, access) as stranger:
                    with pytest.raises(StoreError, match=r"ACL.*headrace\.zookeeper\.auth"):
                        await stranger.get("/x")
                    with pytest.raises(StoreError, match="ACL"):
                        await stranger.list("/")
                    for change in (Put("/x", b"4", -1), Create("/y", b"")):
                        with pytest.raises(StoreError, match="ACL"):
                            await stranger.commit([change])
            with pytest.raises(StoreError, match=r"ACL.*headrace\.zookeeper\.auth"):
                async with opened(url, ZooKeeperAccess(login="brokers:guess", sets_acl=True)):
                    pass
            assert (await store.list("/"))[-1][1].value == b"3"

    asyncio.run(main())


def test_what_is_there_is_made_the_brokers_own_while_they_go_on_and_everybodys_again(zookeeper: Service) -> None:
    async def main() -> None:
        url = own_url(zookeeper)
        async with opened(url, OPEN) as plain, opened(url, KNOWN) as before:
            await fill(plain)
            async with opened(url, OURS) as store:
                assert await store.set_acls(is_open=False) == 9
                assert await store.set_acls(is_open=False) == 0
                found = await acls_of(zookeeper, url)
                assert set(map(frozenset, found.values())) == {frozenset({"digest:31"})}
                await before.commit([Put("/x", b"4", 1)])  # a broker that has the credentials, and was not restarted
                with pytest.raises(StoreError, match="ACL"):
                    await plain.get("/x")
                assert await store.set_acls(is_open=True) == 9
            assert (await plain.get("/x")) is not None

    asyncio.run(main())


def test_a_session_that_comes_back_over_another_connection_is_known_again(zookeeper: Service) -> None:
    async def main() -> None:
        async with opened(own_url(zookeeper), OURS) as store:
            await fill(store)
            gone = asyncio.Event()
            store.on_session(lambda session: gone.set() if session is not SessionState.CONNECTED else None)
            store._keeper._handler.drop()
            await asyncio.wait_for(gone.wait(), 60)
            await store.commit([Put("/x", b"5", 1)])

    asyncio.run(main())


class Tls:
    """A server for ZooKeeper's clients that speak TLS, in front of one that does not."""

    def __init__(self, directory: Path, *, host: str = "localhost", asks: bool = False) -> None:
        self.authority = Authority()
        self.trusted = self.authority.write(directory / "ca.pem")
        self.ours = self.authority.sign("broker").write(directory / "broker.pem")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.authority.sign(hosts=(host,)).write(directory / "server.pem"))
        if asks:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(self.trusted)

    @asynccontextmanager
    async def before(self, address: str) -> AsyncIterator[int]:
        host, _, port = address.rpartition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            behind, onward = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(carry(reader, onward))
                    both.create_task(carry(behind, writer))
            finally:
                writer.close()
                onward.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self._context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "zookeeper.connect": "h:2281/x",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": self.trusted,
            **{name.replace("_", "."): value for name, value in more.items()},
        }


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.close()
    except OSError:
        target.close()


def test_everything_works_over_tls_and_many_answers_in_one_record_are_all_heard(
    zookeeper: Service, tmp_path: Path
) -> None:
    async def main() -> None:
        tls = Tls(tmp_path, asks=True)
        access = access_of(BrokerConfig.parse(tls.settings(zookeeper_ssl_keystore_location=tls.ours)))
        async with tls.before(zookeeper.address) as port:
            root = own_url(zookeeper).partition(zookeeper.address)[2]
            async with opened(f"zookeeper://localhost:{port}{root}", access) as store:
                large = bytes(range(256)) * 3000
                await store.commit([Create("/large", large)])
                keys = [f"/k/{number}" for number in range(300)]
                await asyncio.gather(*(store.commit([Create(key, key.encode())]) for key in keys))
                found = await asyncio.gather(*(store.get(key) for key in keys for _ in range(3)))
                assert [each.value for each in found if each] == [key.encode() for key in keys for _ in range(3)]
                assert len(await store.list("/k/")) == 300
                kept = await store.get("/large")
                assert kept is not None
                assert kept.value == large
                assert isinstance(client_of(store)._connection._socket, ssl.SSLSocket)
                store._keeper._handler.drop()
                assert await store.get("/large") == kept

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["authority", "name", "certificate"])
def test_a_server_or_a_broker_that_cannot_show_who_it_is_is_refused_with_the_reason(
    wrong: str, zookeeper: Service, tmp_path: Path
) -> None:
    async def main() -> None:
        host = "other.example.com" if wrong == "name" else "localhost"
        tls = Tls(tmp_path, host=host, asks=wrong == "certificate")
        trusted = Authority().write(tmp_path / "other.pem") if wrong == "authority" else tls.trusted
        access = access_of(BrokerConfig.parse(tls.settings(zookeeper_ssl_truststore_location=trusted)))
        async with tls.before(zookeeper.address) as port:
            with pytest.raises(StoreError) as caught:
                async with opened(f"zookeeper://localhost:{port}/x", access, patience=2.0):
                    pass
        words = {
            "authority": "certificate verify failed",
            "name": "Hostname mismatch",
            "certificate": "no ZooKeeper server",
        }
        assert words[wrong] in str(caught.value)

    asyncio.run(main())


NETTY = Path(".venv") / "zookeeper-tls"
"""ZooKeeper with what it needs for TLS, which the jars for development do not have."""


@contextmanager
def zookeeper_with_tls(directory: Path) -> Iterator[int]:
    """A real server that speaks nothing but TLS, asks for certificates and knows brokers by them; its port."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java on the path")
    try:
        jars = fetched(NETTY, [Artifact("org.apache.zookeeper", "zookeeper", "3.9.4"), *METRICS])
    except Unavailable as error:
        pytest.skip(str(error))
    (port,) = free_ports(1)
    authority = Authority()
    authority.write(directory / "ca.pem")
    authority.sign().write(directory / "server.pem")
    authority.sign("broker").write(directory / "broker.pem")
    (directory / "zoo.cfg").write_text(
        f"tickTime=500\ndataDir={directory}/data\nadmin.enableServer=false\nsecureClientPort={port}\n"
        "secureClientPortAddress=127.0.0.1\nssl.clientAuth=need\n"
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
        f"ssl.keyStore.location={directory}/server.pem\nssl.keyStore.type=PEM\n"
        f"ssl.trustStore.location={directory}/ca.pem\nssl.trustStore.type=PEM\n"
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with open(directory / "zookeeper.log", "wb") as log:
        command = [java, "-Xmx96m", "-cp", f"{jars}/*", main, str(directory / "zoo.cfg")]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for("ZooKeeper listens", lambda: _is_listening(port))
        yield port
    finally:
        server.kill()
        server.wait()


METRICS = (
    Artifact("io.dropwizard.metrics", "metrics-core", "4.2.26"),
    Artifact("org.xerial.snappy", "snappy-java", "1.1.10.7"),
)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_a_zookeeper_with_tls_knows_brokers_by_their_certificates(tmp_path: Path) -> None:
    given = {
        "zookeeper.connect": "h:2281/x",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    ours = {"zookeeper.ssl.keystore.location": str(tmp_path / "broker.pem"), "zookeeper.set.acl": "true"}

    async def main(port: int) -> None:
        url = f"zookeeper://localhost:{port}/kept"
        async with opened(url, access_of(BrokerConfig.parse({**given, **ours}))) as store:
            await fill(store)
            await store.commit([Create("/large", bytes(900_000))])
            await asyncio.gather(*(store.commit([Create(f"/k/{number}", b"v")]) for number in range(300)))
            assert len(await store.list("/k/")) == 300
            for path in ("/kept", "/kept/topics/a", "/kept/brokers/ids/1", "/kept/k/7"):
                (entries, _), _ = await store._keeper.acl_of(path)
                assert [(e.perms, e.id.scheme, e.id.id) for e in entries] == [(31, "x509", "CN=broker")]
        with pytest.raises(StoreError, match="no ZooKeeper server answers"):
            async with opened(url, access_of(BrokerConfig.parse(given)), patience=2.0):
                pass

    with zookeeper_with_tls(tmp_path) as port:
        asyncio.run(main(port))


def test_the_store_of_a_cluster_is_secured_backed_up_and_opened_from_the_command_line(
    zookeeper: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = own_url(zookeeper)

    async def prepare() -> None:
        async with opened(url, OPEN) as store:
            await fill(store)

    asyncio.run(prepare())
    assert run("cluster", "secure-store", "--store", url).exit_code == 2, "nobody whose it would be"
    file = tmp_path / "server.properties"
    file.write_text("headrace.zookeeper.auth=brokers:s3cret\nzookeeper.connect=" + url.removeprefix("zookeeper://"))
    secured = run("cluster", "secure-store", "--config", str(file), "--json")
    assert (secured.exit_code, json.loads(secured.stdout)["state"]) == (0, "secured")
    backup = ("cluster", "backup", str(tmp_path / "b"), "--store", url)
    refused = run(*backup)
    assert refused.exit_code != 0
    assert "headrace.zookeeper.auth" in refused.stderr
    monkeypatch.setenv("HEADRACE_ZOOKEEPER_AUTH", "brokers:guess")
    assert "headrace.zookeeper.auth" in run("cluster", "secure-store", "--store", url).stderr
    monkeypatch.setenv("HEADRACE_ZOOKEEPER_AUTH", "brokers:s3cret")
    opened_again = run("cluster", "secure-store", "--store", url, "--open")
    assert (opened_again.exit_code, "everybody's" in opened_again.stdout) == (0, True)
    assert "s3cret" not in secured.output + refused.output + opened_again.output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"zookeeper.ssl.truststore.location": "/ca.pem"}, "set zookeeper.ssl.client.enable=true as well"),
        ({"zookeeper.set.acl": "true", "zookeeper.connect": "h:1/x"}, "HEADRACE_ZOOKEEPER_AUTH"),
        ({"zookeeper.set.acl": "true", "zookeeper.connect": "h:1", "headrace.zookeeper.auth": "a:b"}, "h:1/headrace"),
        ({"headrace.zookeeper.auth": "s3cret"}, "Invalid value of a password"),
    ],
)
def test_settings_that_would_only_seem_to_protect_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    for name in ("truststore", "keystore"):
        given = {"zookeeper.ssl.client.enable": "true", f"zookeeper.ssl.{name}.location": str(tmp_path / "no.pem")}
        with pytest.raises(ConfigError, match=rf"^zookeeper\.ssl\.{name}\.location '.*no\.pem' cannot be read"):
            access_of(BrokerConfig.parse(given))


def test_nothing_shows_the_password() -> None:
    assert "s3cret" not in repr(OURS)
