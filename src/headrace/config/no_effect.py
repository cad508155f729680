"""Kafka's settings that are accepted and have no effect here, so that its own files and tools work: the table.

Types, defaults and which of them can be changed while a broker runs are those of Kafka 4.1; those that only 3.9 had are
obsolete. A value that asks for protection or for a function that is not there is refused: `_RULES`.
"""

from collections.abc import Iterator
from typing import Final

from .setting import Setting, Type, ValueRule, only, some_of

KRAFT: Final = "a cluster keeps its state in ZooKeeper (zookeeper.connect), and every broker can be its controller"
_ABSENT: Final = "-"
"""Stands for no default."""
_EMPTY: Final = '""'

_TABLES: Final[dict[str, str]] = {
    "one event loop serves all connections, and the kernel sizes the buffers of sockets": """
background.threads int 10 dynamic
delete.records.purgatory.purge.interval.requests int 1
fetch.purgatory.purge.interval.requests int 1000
group.coordinator.threads int 4
num.io.threads int 8 dynamic
num.network.threads int 3 dynamic
num.replica.alter.log.dirs.threads int -
producer.purgatory.purge.interval.requests int 1000
queued.max.requests int 500
share.coordinator.threads int 1
share.fetch.purgatory.purge.interval.requests int 1000
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50
socket.receive.buffer.bytes int 102400
socket.send.buffer.bytes int 102400
""",
    "one link between two brokers carries all partitions, and leaders send as soon as there is something": """
num.replica.fetchers int 1 dynamic
replica.fetch.backoff.ms int 1000
replica.fetch.max.bytes int 1048576
replica.fetch.min.bytes int 1
replica.fetch.wait.max.ms int 500
replica.high.watermark.checkpoint.interval.ms long 5000
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
""",
    "one log is compacted at a time, in one thread": """
log.cleaner.io.buffer.load.factor double 0.9 dynamic
log.cleaner.io.buffer.size int 524288 dynamic
log.cleaner.io.max.bytes.per.second double 1.7976931348623157e+308 dynamic
log.cleaner.threads int 1 dynamic
""",
    "what it decides is built in": """
add.partitions.to.txn.retry.backoff.max.ms int 100
add.partitions.to.txn.retry.backoff.ms int 20
broker.id.generation.enable boolean true obsolete
controlled.shutdown.max.retries int 3 obsolete
controlled.shutdown.retry.backoff.ms long 5000 obsolete
eligible.leader.replicas.enable boolean false obsolete
group.coordinator.append.linger.ms int 5
group.coordinator.rebalance.protocols list classic,consumer,streams
group.share.max.groups short 10 obsolete
inter.broker.protocol.version string 3.9-IV0 obsolete
log.cleaner.enable boolean true
log.dir.failure.timeout.ms long 30000
log.flush.start.offset.checkpoint.interval.ms int 60000
log.message.downconversion.enable boolean true dynamic obsolete
log.message.format.version string 3.0-IV1 obsolete
max.request.partition.size.limit int 2000
offsets.commit.required.acks short -1 obsolete
offsets.commit.timeout.ms int 5000
offsets.load.buffer.size int 5242880
offsets.topic.compression.codec int 0
request.timeout.ms int 30000
reserved.broker.max.id int 1000 obsolete
share.coordinator.append.linger.ms int 5
share.coordinator.load.buffer.size int 5242880
share.coordinator.state.topic.compression.codec int 0
transaction.partition.verification.enable boolean true dynamic
transaction.state.log.load.buffer.size int 5242880
transaction.two.phase.commit.enable boolean false
""",
    "metrics are served for Prometheus, not by reporters in Java": """
auto.include.jmx.reporter boolean true obsolete
kafka.metrics.polling.interval.secs int 10
kafka.metrics.reporters list ""
metric.reporters list org.apache.kafka.common.metrics.JmxReporter dynamic
metrics.num.samples int 2
metrics.recording.level string INFO
metrics.sample.window.ms long 30000
telemetry.max.bytes int 1048576
""",
    "quotas and limits of this kind are not there yet": """
alter.log.dirs.replication.quota.window.num int 11
alter.log.dirs.replication.quota.window.size.seconds int 1
replication.quota.window.num int 11
replication.quota.window.size.seconds int 1
""",
    "TLS is OpenSSL's, brokers know each other by the cluster's secret, and there is no Kerberos": """
connection.failed.authentication.delay.ms int 100
control.plane.listener.name string - obsolete
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding obsolete
password.encoder.iterations int 4096 obsolete
password.encoder.key.length int 128 obsolete
password.encoder.keyfactory.algorithm string - obsolete
password.encoder.old.secret password - obsolete
password.encoder.secret password - obsolete
sasl.client.callback.handler.class class -
sasl.jaas.config password -
sasl.kerberos.kinit.cmd string /usr/bin/kinit dynamic
sasl.kerberos.min.time.before.relogin long 60000 dynamic
sasl.kerberos.principal.to.local.rules list DEFAULT dynamic
sasl.kerberos.service.name string - dynamic
sasl.kerberos.ticket.renew.jitter double 0.05 dynamic
sasl.kerberos.ticket.renew.window.factor double 0.8 dynamic
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.login.refresh.buffer.seconds short 300
sasl.login.refresh.min.period.seconds short 60
sasl.login.refresh.window.factor double 0.8
sasl.login.refresh.window.jitter double 0.05
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.mechanism.inter.broker.protocol string GSSAPI
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string -
sasl.oauthbearer.assertion.claim.exp.seconds int 300
sasl.oauthbearer.assertion.claim.iss string -
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60
sasl.oauthbearer.assertion.claim.sub string -
sasl.oauthbearer.assertion.file string -
sasl.oauthbearer.assertion.private.key.file string -
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.assertion.template.file string -
sasl.oauthbearer.client.credentials.client.id string -
sasl.oauthbearer.client.credentials.client.secret password -
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope string -
sasl.oauthbearer.token.endpoint.url string -
sasl.server.callback.handler.class class -
security.providers string -
ssl.allow.dn.changes boolean false
ssl.allow.san.changes boolean false
ssl.engine.factory.class class -
ssl.keymanager.algorithm string SunX509
ssl.protocol string TLSv1.3
ssl.provider string -
ssl.secure.random.implementation string -
ssl.trustmanager.algorithm string PKIX
""",
    "streams groups are not there yet": """
group.streams.heartbeat.interval.ms int 5000
group.streams.max.heartbeat.interval.ms int 15000
group.streams.max.session.timeout.ms int 60000
group.streams.max.size int 2147483647
group.streams.max.standby.replicas int 2
group.streams.min.heartbeat.interval.ms int 5000
group.streams.min.session.timeout.ms int 45000
group.streams.num.standby.replicas int 0
group.streams.session.timeout.ms int 45000
""",
    "tiered storage is not there yet": """
log.local.retention.bytes long -2 dynamic
log.local.retention.ms long -2 dynamic
remote.fetch.max.wait.ms int 500 dynamic
remote.list.offsets.request.timeout.ms long 30000 dynamic
remote.log.index.file.cache.total.size.bytes long 1073741824 dynamic
remote.log.manager.copier.thread.pool.size int 10 dynamic
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 dynamic
remote.log.manager.copy.quota.window.num int 11
remote.log.manager.copy.quota.window.size.seconds int 1
remote.log.manager.expiration.thread.pool.size int 10 dynamic
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 dynamic
remote.log.manager.fetch.quota.window.num int 11
remote.log.manager.fetch.quota.window.size.seconds int 1
remote.log.manager.task.interval.ms long 30000
remote.log.manager.thread.pool.size int 2
remote.log.metadata.custom.metadata.max.bytes int 128
remote.log.metadata.manager.class.name string -
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100
remote.log.reader.threads int 10 dynamic
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
""",
    "classes in Java are not loaded": """
alter.config.policy.class.name class -
client.quota.callback.class class -
create.topic.policy.class.name class -
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
""",
    KRAFT: """
broker.heartbeat.interval.ms int 2000
broker.session.timeout.ms int 9000
controller.listener.names string -
controller.quorum.append.linger.ms int 25
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quorum.voters list ""
controller.socket.timeout.ms int 30000
early.start.listeners string -
initial.broker.registration.timeout.ms int 60000
metadata.log.dir string -
metadata.log.max.record.bytes.between.snapshots long 20971520
metadata.log.max.snapshot.interval.ms long 3600000
metadata.log.segment.bytes int 1073741824
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
process.roles list ""
""",
    "TLS to ZooKeeper has modern defaults, and zookeeper.session.timeout.ms says how long it may be silent": """
zookeeper.clientCnxnSocket string - obsolete
zookeeper.connection.timeout.ms int - obsolete
zookeeper.max.in.flight.requests int 10 obsolete
zookeeper.metadata.migration.enable boolean false obsolete
zookeeper.ssl.cipher.suites list - obsolete
zookeeper.ssl.crl.enable boolean false obsolete
zookeeper.ssl.enabled.protocols list - obsolete
zookeeper.ssl.ocsp.enable boolean false obsolete
zookeeper.ssl.protocol string TLSv1.2 obsolete
""",
}
"""Why they have no effect, and which: name, type, default."""


def _left_out(words: str) -> ValueRule:
    return ValueRule(holds=lambda value: not value, words=f"left out: {words}")


_JAVA: Final = _left_out("classes in Java are not loaded")
_RULES: Final = {
    "create.topic.policy.class.name": _JAVA,
    "alter.config.policy.class.name": _JAVA,
    "client.quota.callback.class": _JAVA,
    "process.roles": some_of("broker", "controller", least=0),
    "principal.builder.class": ValueRule(
        holds=lambda value: str(value).endswith(".DefaultKafkaPrincipalBuilder"), words=_JAVA.words
    ),
    "log.cleaner.enable": only(True, "true: logs of topics with cleanup.policy=compact are always compacted"),
    "remote.log.storage.system.enable": only(False, "false: tiered storage is not there yet"),
    "transaction.two.phase.commit.enable": only(False, "false: two-phase commit is not there yet"),
    "zookeeper.metadata.migration.enable": only(False, "false: there is nothing to migrate to"),
    "zookeeper.ssl.crl.enable": only(False, "false: lists of revoked certificates are not looked at"),
    "zookeeper.ssl.ocsp.enable": only(False, "false: whether certificates are revoked is not asked"),
}


def _settings() -> Iterator[Setting]:
    for reason, table in _TABLES.items():
        for row in table.split("\n")[1:-1]:
            name, kind, default, *marks = row.split(" ")
            yield Setting(
                name=name,
                type=Type[kind.upper()],
                default=None if default == _ABSENT else "" if default == _EMPTY else default,
                doc=f"No effect here: {reason}.",
                rule=_RULES.get(name),
                importance="low",
                dynamic="dynamic" in marks,
                obsolete="obsolete" in marks,
                no_effect=reason,
            )


NO_EFFECT_SETTINGS: Final = tuple(_settings())
