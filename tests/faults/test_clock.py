"""A machine whose clock is set ahead: no record expires by it, not even after a restart of the broker."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.client.admin import Admin
from headrace.client.columnar.settings import ClientSettings
from headrace.health import HealthReport, ProblemCode
from headrace.ops.health import ask_health
from tests.support.process import BrokerProcess, Site, wait_for

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return result;
}
"""
DAY = 24 * 3600
SETTINGS = {"log.retention.check.interval.ms": "200", "log.segment.bytes": "100000", "log.segment.delete.delay.ms": "0"}


class SetClock:
    """A clock of one process that a test sets."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "offset"
        self._file.write_text("0")
        library = directory / "shim.so"
        source = directory / "shim.c"
        source.write_text(SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.site = Site(prefix=("env", f"LD_PRELOAD={library}", f"CLOCK_OFFSET_FILE={self._file}"))

    def set_ahead(self, seconds: int) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(str(seconds))
        os.replace(written, self._file)


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 1})
    for number in range(10):
        producer.produce(topic, bytes(50_000), str(number))
    assert producer.flush(60) == 0


def start_of(bootstrap: str, topic: str) -> int:
    """Where a topic's log begins."""
    return Admin(bootstrap).start_offsets(topic, [0])[0]


def wait_for_retention(bootstrap: str) -> None:
    """Returns when retention has looked at every log since: the small topic has lost by size what it was given now."""
    before = start_of(bootstrap, "small")
    produce(bootstrap, "small")
    wait_for("retention by size", lambda: start_of(bootstrap, "small") >= before + 10)


def health(bootstrap: str) -> HealthReport:
    settings = ClientSettings({"bootstrap.servers": bootstrap})
    report = ask_health(settings.bootstrap[0], settings.connection)
    assert isinstance(report, HealthReport), report
    return report


def has_jumped(bootstrap: str) -> Callable[[], bool]:
    return lambda: ProblemCode.CLOCK_JUMPED in {problem.code for problem in health(bootstrap).problems}


def allow_any_clock(bootstrap: str) -> None:
    change = ConfigEntry("headrace.clock.jump.max.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.incremental_alter_configs([broker]).values():
        answer.result(60)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a clock that can be set")
def test_a_clock_ten_days_ahead_deletes_nothing_before_the_operator_says_so(tmp_path: Path) -> None:
    clock = SetClock(tmp_path)
    log = tmp_path / "broker.log"
    with BrokerProcess(tmp_path / "data", SETTINGS, site=clock.site, log=log) as broker:
        bootstrap = broker.bootstrap
        admin = Admin(bootstrap)
        assert admin.create_topics(["kept"], configs={"retention.ms": str(7 * DAY * 1000)}) == {"kept": None}
        assert admin.create_topics(["small"], configs={"retention.bytes": "0"}) == {"small": None}
        produce(bootstrap, "kept")
        wait_for_retention(bootstrap)
        clock.set_ahead(10 * DAY)
        wait_for("the broker notices", has_jumped(bootstrap))
        wait_for("its log says so", lambda: log.read_text().count('event="clock jumped"') == 1)
        wait_for_retention(bootstrap)
        assert start_of(bootstrap, "kept") == 0

        assert broker.stop() == 0
        broker.start()
        wait_for("the broker remembers", has_jumped(bootstrap))
        wait_for_retention(bootstrap)
        assert start_of(bootstrap, "kept") == 0
        assert health(bootstrap).ready

        allow_any_clock(bootstrap)
        wait_for("records expire", lambda: start_of(bootstrap, "kept") == 10)
        assert not has_jumped(bootstrap)()
        expected = 'event="segments deleted" logs=1 names=kept-0 reason=retention.ms segments='
        wait_for("its log says why they are gone", lambda: expected in log.read_text())
