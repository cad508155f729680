"""What takes too long for `make test`, in parts of under twenty minutes on two cores: `make chaos ARGS="--part wild"`.

Without a part all of them run, one after another; each says how long it took. `--list` names them.
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

WILD = [sys.executable, "-m", "tests.cluster.wild"]
FUZZ = [sys.executable, "-m", "tests.fuzz"]
TESTS = [sys.executable, "-m", "pytest", "-q"]
LONG = [*TESTS, "-m", "long and not kafka"]
KAFKA = [*TESTS, "-m", "kafka"]

_LOGINS = ["tests/unit/server/test_hostile_logins.py", "tests/unit/server/test_logins_of_others.py"]
_WITHOUT_LOGINS = [f"--ignore={path}" for path in _LOGINS]

PARTS: dict[str, list[str]] = {
    "wild": [*WILD, "--seeds", "100000:102000", "--jobs", "2"],
    "ablations": [*WILD, "--ablations", "--jobs", "2"],
    "tls-entrance": [sys.executable, "-m", "tests.fuzz.tls_entrance", "--cases", "120000"],
    "kernels": [*FUZZ, "--cases", "5000000", "--jobs", "2"],
    "simulated": [*LONG, "tests/cluster/test_simulated_faults.py", "tests/unit", *_WITHOUT_LOGINS],
    "store": [
        *LONG,
        "tests/cluster/test_zookeeper_store.py",
        "tests/cluster/test_secure_zookeeper.py",
        "tests/cluster/test_openapi.py",
    ],
    "listeners": [*LONG, "tests/faults/test_listeners.py"],
    "quotas": [*LONG, "tests/faults/test_quotas.py"],
    "kill": [*LONG, "tests/faults/test_kill.py", "tests/faults/test_cluster_kill.py"],
    "grow": [*LONG, "tests/faults/test_cluster_grow.py"],
    "exhausted": [*LONG, "tests/faults/test_cluster_exhausted.py"],
    "backup": [*LONG, "tests/faults/test_backup.py"],
    "upgrade": [*LONG, "tests/faults/test_upgrade.py"],
    "securing": [*LONG, "tests/faults/test_securing.py"],
    "security-commands-kafka": [*KAFKA, "tests/processes/test_security_commands_kafka.py"],
    "links": [*LONG, "tests/faults/test_cluster_links.py"],
    "transactions": [*LONG, "tests/faults/test_transactions_kill.py"],
    "share-groups": [*LONG, "tests/faults/test_share_groups_kill.py"],
    "delays": [*LONG, "tests/faults/test_delays_kill.py"],
    "newcomer": [*LONG, "tests/processes/test_newcomer.py"],
    "registry": [*LONG, "tests/processes/test_registry_writers.py"],
    "workers": [*LONG, "tests/faults/test_handlers_kill.py"],
    "sdk-pages": [*LONG, "tests/processes/test_sdk_pages.py"],
    "logins": [*LONG, *_LOGINS],
    "logins-kafka": [*KAFKA, "tests/unit/server/test_scram_of_apache_kafka.py"],
    "share-fetch-kafka": [*KAFKA, "tests/unit/server/test_share_fetch_of_apache_kafka.py"],
    "share-groups-kafka": [*KAFKA, "tests/unit/server/test_share_groups_of_apache_kafka.py"],
    "share-consumer-kafka": [*KAFKA, "tests/faults/test_share_consumer_java.py"],
    "quotas-kafka": [*KAFKA, "tests/unit/server/test_quotas_of_apache_kafka.py"],
    "acls-kafka": [*KAFKA, "tests/unit/server/test_acls_of_apache_kafka.py"],
    "spark-source": [*LONG, "tests/spark/test_source_failover.py"],
    "spark-evolution": [*LONG, "tests/spark/test_evolution.py", "tests/spark/test_registry_outage.py"],
    "spark-sink": [*LONG, "tests/spark/test_sink_failover.py", "tests/spark/test_sink_restarts.py"],
    "lake": [*LONG, "tests/faults/test_archive_kill.py"],
    **{
        f"lake-{form}": [*LONG, "tests/spark/test_archive_kill.py", "tests/spark/test_archive.py", "-k", form]
        for form in ("parquet", "delta", "iceberg")
    },
    "kafka-tls": [*KAFKA, "tests/unit/security/test_certificates.py", "tests/cluster/test_tls_java.py"],
    "spark-kafka": [*KAFKA, "tests/spark/test_sink_restarts.py"],
    "spark-kafka-stages": [*KAFKA, "tests/spark/test_sink_stages.py"],
    "spark-kafka-pipelines": [*KAFKA, "tests/spark/test_pipeline_restarts.py"],
    "spark-stages": [*LONG, "tests/spark/test_sink_stages.py", "tests/spark/test_sink_times.py"],
    "spark-pipelines": [*LONG, "tests/spark/test_pipeline_process.py", "tests/spark/test_pipeline_restarts.py"],
    "spark-backfill": [*LONG, "tests/spark/test_backfill.py", "tests/spark/test_expectations.py"],
    "spark-sql": [*LONG, "tests/spark/test_sql.py"],
    "spark-postgres": [*LONG, "tests/spark/test_postgres.py"],
    "spark-service": [*LONG, "tests/spark/test_pipeline_service.py", "-k", "not on_a_cluster and not connect"],
    "spark-service-connect": [*LONG, "tests/spark/test_pipeline_service.py", "-k", "connect"],
    "spark-service-cluster": [*LONG, "tests/spark/test_pipeline_service.py", "-k", "on_a_cluster"],
    "spark-lease": [*LONG, "tests/spark/test_pipeline_lease.py"],
    "spark-cluster": [*LONG, "tests/spark/test_cluster.py", "tests/spark/test_declarative.py"],
    "spark-deployment": [*LONG, "tests/spark/test_deployment.py"],
}
"""Every test that is marked `long` is in one of them."""


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - what the command is for


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every part has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="this part alone; may be given again")
    parser.add_argument("--list", action="store_true", help="name the parts")
    given = parser.parse_args(arguments)
    if given.list:
        for name, command in PARTS.items():
            _say(f"{name:22} {shlex.join(command[1:])}")
        return 0
    codes: dict[str, int] = {}
    for name in given.part or PARTS:
        began = time.monotonic()
        _say(f"chaos: {name}")
        codes[name] = subprocess.run(PARTS[name], check=False).returncode
        outcome = "passed" if codes[name] == 0 else "FAILED"
        _say(f"chaos: {name} {outcome} in {time.monotonic() - began:.0f} s")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
