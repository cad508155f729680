"""The settings of a broker's audit log."""

from typing import Final

from .setting import Setting, Type, at_least, one_of

AUDIT: Final = "headrace.audit"
AUDIT_LEVEL: Final = "headrace.audit.level"
AUDIT_RETENTION: Final = "headrace.audit.retention.ms"
LEVELS: Final = ("denials", "admin", "all")

AUDIT_SETTINGS: Final = (
    Setting(
        name=AUDIT,
        type=Type.STRING,
        default="off",
        rule=one_of("off", "log", "topic"),
        doc="Where this broker records who did what: `log` in its log, `topic` in the topic __audit_log, too "
        "(`headrace audit` shows it).",
        importance="high",
    ),
    Setting(
        name=AUDIT_LEVEL,
        type=Type.STRING,
        default="admin",
        rule=one_of(*LEVELS),
        doc="What is recorded: `denials` what was refused and logins that failed, `admin` also changes of topics, "
        "settings, users, ACLs, quotas, groups and the cluster, `all` also logins that succeeded.",
    ),
    Setting(
        name=AUDIT_RETENTION,
        type=Type.LONG,
        default="604800000",
        rule=at_least(1),
        doc="retention.ms of the topic __audit_log when it is made; after that, as of any topic, `headrace config set "
        "topic __audit_log retention.ms=30d` changes it.",
    ),
)
