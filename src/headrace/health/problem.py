"""Problems of a broker: a fixed set of codes, each with how bad it is, whether it keeps the broker from being ready,
and what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Severity(StrEnum):
    """How bad a problem is."""

    OK = "ok"
    """No problem at all: the severity of a report without one."""
    WARNING = "warning"
    """It will need someone."""
    CRITICAL = "critical"
    """Someone must act: writes are refused, or records may become unavailable."""


class Code(StrEnum):
    """Every problem that a broker can report, by the name that metrics, JSON and alerts use."""

    LOG_DIR_FULL = "log-dir-full"
    LOG_DIR_FAILED = "log-dir-failed"
    WRITES_STALLED = "writes-stalled"
    DISK_LOW = "disk-low"
    STORE_UNREACHABLE = "store-unreachable"
    NOT_REGISTERED = "not-registered"
    RECOVERING = "recovering"
    DESCRIPTORS_SHORT = "descriptors-short"
    CLOCK_JUMPED = "clock-jumped"
    OFFLINE_PARTITIONS = "offline-partitions"
    UNDER_MIN_ISR = "under-min-isr"
    UNDER_REPLICATED = "under-replicated"
    CERTIFICATE_EXPIRED = "certificate-expired"
    CERTIFICATE_EXPIRES = "certificate-expires"
    CERTIFICATE_REFUSED = "certificate-refused"


class Kind(NamedTuple):
    """What is the same for every problem of a code."""

    title: str
    """In the words that people search for: what is logged, and shown first."""
    severity: Severity
    keeps_from_ready: bool
    """Whether a broker with this problem should get no traffic. False where other brokers are the cause: to take this
    one out as well would only make it worse."""
    advice: str


KINDS: Final[Mapping[Code, Kind]] = {
    Code.LOG_DIR_FULL: Kind(
        "disk full",
        Severity.CRITICAL,
        True,
        "free space on the disk, add some, or shorten retention.ms or retention.bytes of large topics; writes go on by "
        "themselves once there is space",
    ),
    Code.LOG_DIR_FAILED: Kind(
        "log directory failed",
        Severity.CRITICAL,
        True,
        "look at the disk (dmesg, SMART) and at the broker's log; then restart the broker, or let it fetch the log "
        "anew with `headrace log refetch`",
    ),
    Code.WRITES_STALLED: Kind(
        "log writes stalled",
        Severity.CRITICAL,
        True,
        "look at the disk (dmesg, iostat -x): it has not answered; writes go on by themselves once it does. If it does "
        "not, stop the broker, so that others lead",
    ),
    Code.DISK_LOW: Kind(
        "disk space low", Severity.WARNING, False, "add disk space or shorten retention before the disk is full"
    ),
    Code.STORE_UNREACHABLE: Kind(
        "ZooKeeper unreachable",
        Severity.CRITICAL,
        True,
        "check that the ZooKeeper servers run, have a majority and can be reached from this machine; the broker "
        "registers again by itself",
    ),
    Code.NOT_REGISTERED: Kind(
        "broker not registered",
        Severity.CRITICAL,
        True,
        "wait for the broker to join its cluster; its log says what it waits for",
    ),
    Code.RECOVERING: Kind(
        "log recovery running",
        Severity.WARNING,
        True,
        "wait: logs are checked after an unclean stop; the broker's log shows the progress",
    ),
    Code.DESCRIPTORS_SHORT: Kind(
        "file descriptors short",
        Severity.WARNING,
        False,
        "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= in systemd), then restart the broker",
    ),
    Code.CLOCK_JUMPED: Kind(
        "clock jumped",
        Severity.CRITICAL,
        False,
        "check the machine's clock and its time service; nothing expires by the new time until the clock is back. "
        "Where it is right now, say so: set headrace.clock.jump.max.ms=-1 for this broker, then take that back",
    ),
    Code.OFFLINE_PARTITIONS: Kind(
        "offline partitions",
        Severity.CRITICAL,
        False,
        "start the brokers that hold the replicas; `headrace cluster describe` names the partitions",
    ),
    Code.UNDER_MIN_ISR: Kind(
        "partitions under min ISR",
        Severity.CRITICAL,
        False,
        "bring back the replicas that are missing or behind: writes with acks=all are refused",
    ),
    Code.UNDER_REPLICATED: Kind(
        "partitions under-replicated",
        Severity.WARNING,
        False,
        "see which brokers are missing or behind: `headrace cluster describe`",
    ),
    Code.CERTIFICATE_EXPIRED: Kind(
        "TLS certificate expired",
        Severity.CRITICAL,
        False,
        "put a new certificate in the place of the old one (ssl.keystore.location): it is taken up within seconds; "
        "clients refuse this one",
    ),
    Code.CERTIFICATE_EXPIRES: Kind(
        "TLS certificate expires soon",
        Severity.WARNING,
        False,
        "put a new certificate in the place of the old one (ssl.keystore.location): it is taken up within seconds",
    ),
    Code.CERTIFICATE_REFUSED: Kind(
        "new TLS certificate refused",
        Severity.WARNING,
        False,
        "correct the files or settings that are named: the certificate from before is used until then",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong."""

    code: Code
    severity: Severity
    subject: str
    """What it is about: a directory, an address, `broker 1`."""
    message: str
    """What happened, in one sentence, with numbers."""
    advice: str
    """What to do."""

    @property
    def title(self) -> str:
        """What it is called, in the words that people search for."""
        return KINDS[self.code].title

    @property
    def keeps_from_ready(self) -> bool:
        """Whether a broker with this problem should get no traffic."""
        return KINDS[self.code].keeps_from_ready

    def to_json(self) -> dict[str, str]:
        """As JSON has it."""
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "subject": self.subject,
            "message": self.message,
            "advice": self.advice,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Problem":
        """The problem that `to_json` wrote; `KeyError` or `ValueError` where it is none."""
        return cls(
            code=Code(values["code"]),
            severity=Severity(values["severity"]),
            subject=str(values["subject"]),
            message=str(values["message"]),
            advice=str(values["advice"]),
        )


def problem(code: Code, subject: str, message: str) -> Problem:
    """A problem of a code, as bad as its kind is, with the advice of its kind."""
    kind = KINDS[code]
    return Problem(code=code, severity=kind.severity, subject=subject, message=message, advice=kind.advice)
