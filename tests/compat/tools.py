"""Other people's tools for operators against a broker: Kafka's own, of two releases, and kafkactl.

Each scenario is a few commands as users type them; what they print is looked at, and their exit codes.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.support.maven import Artifact, fetched
from tests.support.maven import Unavailable as NotFetched

from .model import NotOffered
from .provision import Unavailable
from .runner import Outcome, Status, attempt

KAFKAS = ("4.1.0", "3.9.1")
_KAFKACTL = "github.com/deviceinsight/kafkactl/v5@v5.20.0"
_SECONDS = 90.0
_INSTALL_SECONDS = 600.0
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_TOOLS = "org.apache.kafka.tools"
_PROGRAMS = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
}
_PROGRAMS_OF_3 = {
    **_PROGRAMS,
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
}


_PREFIXED = ("--resource-pattern-type", "prefixed")


class ToolFailed(AssertionError):
    """A command ended otherwise than it should, or did not print what it should."""


def _executed(command: Sequence[str], shown: str, *, fails: bool = False, given: str = "") -> str:
    """What the command printed; with `fails` it has to end with an error."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
    printed = done.stdout + done.stderr
    if (done.returncode != 0) != fails:
        raise ToolFailed(f"{shown} ended with {done.returncode}: {printed.strip()[-300:]}")
    return printed


def _holds(printed: str, *words: str) -> None:
    for each in words:
        if each not in printed:
            raise ToolFailed(f"{each!r} is not in what was printed: {printed.strip()[-300:]}")


class Toolbox(Protocol):
    """Where tools come from, and what they are tried with."""

    name: str

    def prepare(self, cache: Path) -> None: ...

    def scenarios(self, bootstrap: str) -> "Mapping[str, Callable[[], None]]": ...


class KafkasTools:
    """The tools of a release of Apache Kafka, as its scripts start them."""

    def __init__(self, version: str) -> None:
        self.name = f"Kafka {version}"
        self._version = version
        self._programs = _PROGRAMS_OF_3 if version.startswith("3") else _PROGRAMS
        self._java: list[str] = []

    def prepare(self, cache: Path) -> None:
        runtime = shutil.which("java")
        if runtime is None:
            raise Unavailable("no Java on the path")
        wanted = (
            Artifact("org.apache.kafka", "kafka_2.13", self._version),
            Artifact("org.apache.kafka", "kafka-tools", self._version),
            Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
        )
        try:
            jars = fetched(cache / f"kafka-tools-{self._version}", wanted)
        except NotFetched as reason:
            raise Unavailable(str(reason)) from reason
        self._java = [runtime, *_JVM, "-cp", f"{jars}/*"]

    def scenarios(self, bootstrap: str) -> Mapping[str, Callable[[], None]]:
        self._server = ["--bootstrap-server", bootstrap]
        topic = f"tools-{self._version.replace('.', '-')}"
        return {
            "kafka-acls": self._acls,
            "kafka-topics": partial(self._topics, topic),
            "kafka-configs, topics": partial(self._topic_configs, topic),
            "kafka-configs, brokers": self._broker_configs,
            "kafka-configs, broker-loggers": self._loggers,
            "kafka-configs, groups": self._group_configs,
            "kafka-configs, users and clients": self._client_quotas,
            "kafka-configs, ips": self._ip_quotas,
            "kafka-configs, client-metrics": self._client_metrics,
            "kafka-features": self._features,
            "kafka-metadata-quorum": self._quorum,
            "kafka-broker-api-versions": self._api_versions,
            "kafka-log-dirs": partial(self._log_dirs, topic),
            "kafka-get-offsets": partial(self._offsets, topic),
            "kafka-leader-election": partial(self._election, topic),
            "kafka-consumer-groups": partial(self._groups, topic),
            "kafka-share-groups": partial(self._share_groups, topic),
            "kafka-cluster": self._cluster,
        }

    def _run(self, program: str, *arguments: str, fails: bool = False, given: str = "") -> str:
        after = [*arguments, *self._server] if program == "kafka-cluster" else [*self._server, *arguments]
        command = [*self._java, self._programs[program], *after]
        return _executed(command, " ".join((program, *arguments)), fails=fails, given=given)

    def _configs(self, *arguments: str, fails: bool = False) -> str:
        return self._run("kafka-configs", *arguments, fails=fails)

    def _acls(self) -> None:
        acls, alice, bob = partial(self._run, "kafka-acls"), "User:CN=alice,O=acme", "User:bob"
        topic = f"acl-{self._version}"
        acls("--add", "--allow-principal", alice, "--producer", "--topic", topic)
        acls("--add", "--allow-principal", bob, "--consumer", "--topic", "acl-", "--group", "acl-", *_PREFIXED)
        acls("--add", "--deny-principal", bob, "--deny-host", "10.0.0.1", "--operation", "Read", "--topic", "*")
        listed = acls("--list", "--topic", topic, "--resource-pattern-type", "match")
        _holds(listed, alice, "operation=WRITE", "operation=CREATE", "patternType=PREFIXED", "permissionType=DENY")
        _holds(acls("--list", "--principal", bob), "resourceType=GROUP", "host=10.0.0.1")
        acls("--remove", "--force", "--topic", topic)
        if alice in acls("--list"):
            raise ToolFailed("what was removed is still listed")
        acls("--remove", "--force", "--topic", "acl-", "--group", "acl-", *_PREFIXED)
        acls("--remove", "--force", "--topic", "*")
        _holds(self._run("kafka-acls", "--add", "--allow-principal", "bob", "--topic", topic, fails=True), "bob")

    def _topics(self, topic: str) -> None:
        self._run("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
        self._run("kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
        _holds(self._run("kafka-topics", "--describe", "--topic", topic), "PartitionCount: 3", "Partition: 2", "Isr: 1")
        _holds(self._run("kafka-topics", "--list"), topic)

    def _topic_configs(self, topic: str) -> None:
        entity = ("--entity-type", "topics", "--entity-name", topic)
        self._configs("--alter", *entity, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
        _holds(self._configs("--describe", *entity), "retention.ms=1000", "cleanup.policy=compact,delete")
        self._configs("--alter", *entity, "--delete-config", "retention.ms,cleanup.policy")
        _holds(self._configs("--describe", *entity, "--all"), "retention.ms=604800000")

    def _broker_configs(self) -> None:
        one, all_ = ("--entity-type", "brokers", "--entity-name", "1"), ("--entity-type", "brokers", "--entity-default")
        ignored = "background.threads=5,num.io.threads=4,num.replica.fetchers=2,log.cleaner.threads=2"
        self._configs("--alter", *one, "--add-config", ignored)
        _holds(self._configs("--describe", *one), *(f"{pair} " for pair in ignored.split(",")))
        self._configs("--alter", *all_, "--add-config", "log.retention.ms=86400000")
        _holds(self._configs("--describe", *all_), "log.retention.ms=86400000")
        names = ",".join(pair.partition("=")[0] for pair in ignored.split(","))
        self._configs("--alter", *one, "--delete-config", names)
        self._configs("--alter", *all_, "--delete-config", "log.retention.ms")
        _holds(self._configs("--describe", *one, "--all"), "background.threads=10", "log.retention.ms=604800000")
        _holds(self._configs("--alter", *one, "--add-config", "num.partitions=2", fails=True), "Cannot update")

    def _loggers(self) -> None:
        entity, logger = ("--entity-type", "broker-loggers", "--entity-name", "1"), "headrace.server.connection"
        _holds(self._configs("--describe", *entity), "ROOT=INFO", f"{logger}=INFO")
        self._configs("--alter", *entity, "--add-config", f"{logger}=DEBUG")
        _holds(self._configs("--describe", *entity), f"{logger}=DEBUG", "headrace.server=INFO")
        self._configs("--alter", *entity, "--delete-config", logger)
        _holds(self._configs("--describe", *entity), f"{logger}=INFO")
        _holds(self._configs("--alter", *entity, "--add-config", "no.logger=INFO", fails=True), "no.logger")

    def _group_configs(self) -> None:
        if self._version.startswith("3"):
            raise NotOffered("kafka-configs of 3.9 knows no groups")
        entity = ("--entity-type", "groups", "--entity-name", "tools")
        self._configs("--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
        _holds(self._configs("--describe", *entity), "consumer.session.timeout.ms=50000")
        self._configs("--alter", *entity, "--delete-config", "consumer.session.timeout.ms")

    def _client_quotas(self) -> None:
        user, client = ("--entity-type", "users"), ("--entity-type", "clients")
        alice, app = ("--entity-name", f"alice-{self._version}"), ("--entity-name", "app")
        rates = "producer_byte_rate=1048576,request_percentage=12.5"
        self._configs("--alter", *user, *alice, "--add-config", rates)
        self._configs("--alter", *user, *alice, *client, *app, "--add-config", "consumer_byte_rate=2048")
        self._configs("--alter", *user, "--entity-default", *client, "--entity-default", "--add-config", rates)
        self._configs("--alter", *client, *app, "--add-config", "controller_mutation_rate=5")
        _holds(self._configs("--describe", *user, *alice), "producer_byte_rate=1048576.0", "request_percentage=12.5")
        _holds(self._configs("--describe", *user, *alice, *client, *app), "consumer_byte_rate=2048.0")
        _holds(self._configs("--describe", *client, *app), "controller_mutation_rate=5.0")
        _holds(self._configs("--describe", *user, *client), "the default user-principal", "the default client-id")
        self._configs("--alter", *user, *alice, "--delete-config", "producer_byte_rate,request_percentage")
        self._configs("--alter", *user, *alice, *client, *app, "--delete-config", "consumer_byte_rate")
        names = "producer_byte_rate,request_percentage"
        self._configs("--alter", *user, "--entity-default", *client, "--entity-default", "--delete-config", names)
        self._configs("--alter", *client, *app, "--delete-config", "controller_mutation_rate")
        if "_rate" in self._configs("--describe", *user, *client):
            raise ToolFailed("quotas that were removed are still described")
        wrong = ("--alter", *client, *app, "--add-config", "producer_byte_rate=0")
        _holds(self._configs(*wrong, fails=True), "must be greater than 0")

    def _ip_quotas(self) -> None:
        entity = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
        self._configs("--alter", *entity, "--add-config", "connection_creation_rate=5")
        _holds(self._configs("--describe", *entity), "connection_creation_rate=5.0")
        self._configs("--alter", *entity, "--delete-config", "connection_creation_rate")
        if "connection_creation_rate" in self._configs("--describe", "--entity-type", "ips"):
            raise ToolFailed("a quota that was removed is still described")

    def _client_metrics(self) -> None:
        entity = ("--entity-type", "client-metrics", "--entity-name", "basic")
        self._configs("--alter", *entity, "--add-config", "interval.ms=60000,match=[client_id=orders.*]")
        _holds(self._configs("--describe", *entity), "interval.ms=60000", "match=client_id=orders.*")
        _holds(self._run("kafka-client-metrics", "--list"), "basic")
        self._run("kafka-client-metrics", "--delete", "--name", "basic")
        if "basic" in self._run("kafka-client-metrics", "--list"):
            raise ToolFailed("a subscription that was deleted is listed")

    def _features(self) -> None:
        described = self._run("kafka-features", "describe")
        for feature, level in (("group.version", 1), ("transaction.version", 2)):
            lines = [line for line in described.splitlines() if f"Feature: {feature}" in line]
            _holds("".join(lines), f"FinalizedVersionLevel: {level}")
        self._run("kafka-features", "upgrade", "--feature", "transaction.version=2")
        refused = self._run("kafka-features", "downgrade", "--feature", "transaction.version=0", fails=True)
        _holds(refused, "only support version 2")

    def _quorum(self) -> None:
        status = self._run("kafka-metadata-quorum", "describe", "--status")
        _holds(status, "LeaderId:               1", "MaxFollowerLag:         0", "HighWatermark:")
        _holds(self._run("kafka-metadata-quorum", "describe", "--replication"), "LogEndOffset", "Leader")

    def _api_versions(self) -> None:
        printed = self._run("kafka-broker-api-versions")
        _holds(printed, "Produce(0):", "DescribeQuorum(55): 0 to 2", "UpdateFeatures(57): 0 to 2")

    def _log_dirs(self, topic: str) -> None:
        _holds(
            self._run("kafka-log-dirs", "--describe", "--topic-list", topic), f'"partition":"{topic}-0"', '"logDir":'
        )

    def _offsets(self, topic: str) -> None:
        _holds(self._run("kafka-get-offsets", "--topic", topic), f"{topic}:0:0", f"{topic}:2:0")

    def _election(self, topic: str) -> None:
        which = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
        _holds(self._run("kafka-leader-election", *which), "Valid replica already elected")

    def _groups(self, topic: str) -> None:
        group = ("--group", f"group-{topic}")
        reset = ("--reset-offsets", *group, "--topic", topic, "--to-earliest", "--execute")
        _holds(self._run("kafka-consumer-groups", *reset), topic)
        _holds(self._run("kafka-consumer-groups", "--describe", *group), "CURRENT-OFFSET", topic)
        _holds(self._run("kafka-consumer-groups", "--list"), f"group-{topic}")
        _holds(self._run("kafka-consumer-groups", "--delete", *group), "successful")

    def _share_groups(self, topic: str) -> None:
        if self._version.startswith("3"):
            raise NotOffered("Kafka 3.9 has no share groups")
        group = ("--group", f"shared-{topic}")
        from_start = ("--add-config", "share.auto.offset.reset=earliest")
        self._configs("--alter", "--entity-type", "groups", "--entity-name", group[1], *from_start)
        given = "".join(f"job {number}\n" for number in range(5))
        self._run("kafka-console-producer", "--topic", topic, given=given)
        consumed = self._run(
            "kafka-console-share-consumer", *group, "--topic", topic, "--max-messages", "5", "--timeout-ms", "30000"
        )
        _holds(consumed, "job 0", "job 4")
        shares = partial(self._run, "kafka-share-groups")
        _holds(shares("--list", "--state"), group[1], "Empty")
        _holds(shares("--describe", *group), "START-OFFSET", topic)
        _holds(shares("--describe", *group, "--state"), "Empty")
        _holds(shares("--delete-offsets", *group, "--topic", topic), "Successful")
        _holds(shares("--delete", *group), "successful")

    def _cluster(self) -> None:
        _holds(self._run("kafka-cluster", "cluster-id"), "Cluster ID: ")


class Kafkactl:
    """kafkactl: as it is on the path, or built by Go."""

    name = "kafkactl"

    def __init__(self, home: Path) -> None:
        self._home = home
        """Where it keeps what it remembers."""
        self._program = ""

    def prepare(self, cache: Path) -> None:
        found = shutil.which("kafkactl") or shutil.which("kafkactl", path=str(cache / "go"))
        if found is None:
            found = self._built(cache / "go")
        self._program = found

    @staticmethod
    def _built(directory: Path) -> str:
        compiler = shutil.which("go")
        if compiler is None:
            raise Unavailable("kafkactl is not on the path, nor is Go, which would build it")
        environment = {**os.environ, "GOBIN": str(directory.absolute())}
        command = [compiler, "install", _KAFKACTL]
        try:
            subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS
            )
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"go install failed: {error.stderr.strip().splitlines()[0][:150]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"go install failed: {error}") from error
        return str(directory / "kafkactl")

    def scenarios(self, bootstrap: str) -> Mapping[str, Callable[[], None]]:
        self._environment = ["env", f"HOME={self._home}", f"BROKERS={bootstrap}"]
        return {
            "kafkactl, brokers": self._brokers,
            "kafkactl, topics": self._topics,
            "kafkactl, groups": self._groups,
        }

    def _run(self, *arguments: str, given: str = "") -> str:
        return _executed([*self._environment, self._program, *arguments], " ".join(arguments), given=given)

    def _brokers(self) -> None:
        _holds(self._run("get", "brokers"), "127.0.0.1")
        self._run("alter", "broker", "1", "--config", "background.threads=7")
        _holds(self._run("describe", "broker", "1"), "background.threads", "7")

    def _topics(self) -> None:
        self._run("create", "topic", "ctl", "--partitions", "2")
        self._run("alter", "topic", "ctl", "--partitions", "3", "--config", "retention.ms=500000")
        _holds(self._run("describe", "topic", "ctl"), "retention.ms", "500000")
        self._run("produce", "ctl", "--key", "k", given="hello\n")
        _holds(self._run("consume", "ctl", "--from-beginning", "--exit"), "hello")
        self._run("clone", "topic", "ctl", "ctl-2")
        _holds(self._run("get", "topics"), "ctl-2")

    def _groups(self) -> None:
        self._run("create", "consumer-group", "ctl-group", "--topic", "ctl", "--oldest")
        _holds(self._run("describe", "consumer-group", "ctl-group"), "LAG", "ctl")
        self._run("reset", "consumer-group-offset", "ctl-group", "--topic", "ctl", "--newest", "--execute")
        self._run("delete", "consumer-group", "ctl-group")
        self._run("delete", "topic", "ctl")


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """What was seen of the tools of one origin; `unavailable` tells why they could not be tried."""

    name: str
    unavailable: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def run_tools(bootstrap: str, cache: Path, logs: Path, say: Callable[[str], None]) -> list[ToolResult]:
    """Every scenario of every tool; `say` is told what fails."""
    results = []
    toolboxes: list[Toolbox] = [*(KafkasTools(version) for version in KAFKAS), Kafkactl(logs)]
    for toolbox in toolboxes:
        say(f"tools of {toolbox.name}: setting up")
        results.append(_tried(toolbox, bootstrap, cache, logs, say))
    return results


def _tried(toolbox: Toolbox, bootstrap: str, cache: Path, logs: Path, say: Callable[[str], None]) -> ToolResult:
    try:
        toolbox.prepare(cache)
    except Unavailable as reason:
        say(f"tools of {toolbox.name}: not run: {reason}")
        return ToolResult(name=toolbox.name, unavailable=str(reason))
    result = ToolResult(name=toolbox.name)
    for title, scenario in toolbox.scenarios(bootstrap).items():
        outcome = result.outcomes[title] = attempt(scenario)
        if outcome.status is Status.FAILED:
            say(f"{toolbox.name}: {title}: {outcome.note}")
            with (logs / "tools.failures").open("a") as log:
                log.write(f"{toolbox.name}: {title}\n{outcome.trace}\n")
    passed = sum(outcome.status is Status.PASSED for outcome in result.outcomes.values())
    say(f"tools of {toolbox.name}: {passed} of {len(result.outcomes)} passed")
    return result
