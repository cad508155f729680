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


class ProblemCode(StrEnum):
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
    DEAD_LETTERS_WAIT = "dead-letters-wait"
    CERTIFICATE_EXPIRED = "certificate-expired"
    CERTIFICATE_EXPIRES = "certificate-expires"
    CERTIFICATE_REFUSED = "certificate-refused"


class ProblemKind(NamedTuple):
    """What is the same for every problem of a code."""

    title: str
    """In the words that people search for: what is logged, and shown first."""
    severity: Severity
    keeps_from_ready: bool
    """Whether a broker with this problem should get no traffic. False where other brokers are the cause: to take this
    one out as well would only make it worse."""
    advice: str


KINDS: Final[Mapping[ProblemCode, ProblemKind]] = {
    ProblemCode.LOG_DIR_FULL: ProblemKind(
        "disk full",
        Severity.CRITICAL,
        True,
        "free space on the disk, add some, or shorten retention.ms or retention.bytes of large topics; writes go on by "
        "themselves once there is space",
    ),
    ProblemCode.LOG_DIR_FAILED: ProblemKind(
        "log directory failed",
        Severity.CRITICAL,
        True,
        "look at the disk (dmesg, SMART) and at the broker's log; then restart the broker, or let it fetch the log "
        "anew with `headrace log refetch`",
    ),
    ProblemCode.WRITES_STALLED: ProblemKind(
        "log writes stalled",
        Severity.CRITICAL,
        True,
        "look at the disk (dmesg, iostat -x): it has not answered; writes go on by themselves once it does. If it does "
        "not, stop the broker, so that others lead",
    ),
    ProblemCode.DISK_LOW: ProblemKind(
        "disk space low", Severity.WARNING, False, "add disk space or shorten retention before the disk is full"
    ),
    ProblemCode.STORE_UNREACHABLE: ProblemKind(
        "ZooKeeper unreachable",
        Severity.CRITICAL,
        True,
        "check that the ZooKeeper servers run, have a majority and can be reached from this machine; the broker "
        "registers again by itself",
    ),
    ProblemCode.NOT_REGISTERED: ProblemKind(
        "broker not registered",
        Severity.CRITICAL,
        True,
        "wait for the broker to join its cluster; its log says what it waits for",
    ),
    ProblemCode.RECOVERING: ProblemKind(
        "log recovery running",
        Severity.WARNING,
        True,
        "wait: logs are checked after an unclean stop; the broker's log shows the progress",
    ),
    ProblemCode.DESCRIPTORS_SHORT: ProblemKind(
        "file descriptors short",
        Severity.WARNING,
        False,
        "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= in systemd), then restart the broker",
    ),
    ProblemCode.CLOCK_JUMPED: ProblemKind(
        "clock jumped",
        Severity.CRITICAL,
        False,
        "check the machine's clock and its time service; nothing expires by the new time until the clock is back. "
        "Where it is right now, say so: set headrace.clock.jump.max.ms=-1 for this broker, then take that back",
    ),
    ProblemCode.OFFLINE_PARTITIONS: ProblemKind(
        "offline partitions",
        Severity.CRITICAL,
        False,
        "start the brokers that hold the replicas; `headrace cluster describe` names the partitions",
    ),
    ProblemCode.UNDER_MIN_ISR: ProblemKind(
        "partitions under min ISR",
        Severity.CRITICAL,
        False,
        "bring back the replicas that are missing or behind: writes with acks=all are refused",
    ),
    ProblemCode.UNDER_REPLICATED: ProblemKind(
        "partitions under-replicated",
        Severity.WARNING,
        False,
        "see which brokers are missing or behind: `headrace cluster describe`",
    ),
    ProblemCode.DEAD_LETTERS_WAIT: ProblemKind(
        "dead letters cannot be written",
        Severity.WARNING,
        False,
        "see to their topic as the reason says; they are written by themselves then, and until then their records are "
        "kept: the group has no more than retention leaves them",
    ),
    ProblemCode.CERTIFICATE_EXPIRED: ProblemKind(
        "TLS certificate expired",
        Severity.CRITICAL,
        False,
        "put a new certificate in the place of the old one (ssl.keystore.location): it is taken up within seconds; "
        "clients refuse this one",
    ),
    ProblemCode.CERTIFICATE_EXPIRES: ProblemKind(
        "TLS certificate expires soon",
        Severity.WARNING,
        False,
        "put a new certificate in the place of the old one (ssl.keystore.location): it is taken up within seconds",
    ),
    ProblemCode.CERTIFICATE_REFUSED: ProblemKind(
        "new TLS certificate refused",
        Severity.WARNING,
        False,
        "correct the files or settings that are named: the certificate from before is used until then",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthProblem:
    """One thing that is wrong."""

    code: ProblemCode
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
    def from_json(cls, values: Mapping[str, Any]) -> "HealthProblem":
        """The problem that `to_json` wrote; `KeyError` or `ValueError` where it is none."""
        return cls(
            code=ProblemCode(values["code"]),
            severity=Severity(values["severity"]),
            subject=str(values["subject"]),
            message=str(values["message"]),
            advice=str(values["advice"]),
        )


def problem(code: ProblemCode, subject: str, message: str) -> HealthProblem:
    """A problem of a code, as bad as its kind is, with the advice of its kind."""
    kind = KINDS[code]
    return HealthProblem(code=code, severity=kind.severity, subject=subject, message=message, advice=kind.advice)
