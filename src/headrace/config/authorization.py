"""The settings of a broker that say whether ACLs count, and for whom they do not."""

from typing import Final

from .setting import Setting, Type, ValueRule

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_WITHOUT_ACLS: Final = "allow.everyone.if.no.acl.found"
STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OWN: Final = "headrace"


def super_users_in(text: str) -> list[str]:
    """The principals of `super.users`, which are parted by semicolons: names of certificates have commas."""
    return [each.strip() for each in text.split(";") if each.strip()]


def _are_principals(text: object) -> bool:
    return all(kind and who for kind, _, who in (each.partition(":") for each in super_users_in(str(text or ""))))


AUTHORIZATION_SETTINGS: Final = (
    Setting(
        name=AUTHORIZER,
        type=Type.STRING,
        default="",
        rule=ValueRule(holds=lambda value: value in ("", STANDARD, OWN), words=f"{OWN}, {STANDARD}, or empty"),
        doc="Whether ACLs say who may do what: `headrace`, or the name of Kafka's authorizer, which is the same here. "
        "Empty: whoever can connect may do everything. To be the same on all brokers.",
        importance="high",
    ),
    Setting(
        name=SUPER_USERS,
        type=Type.STRING,
        default="",
        rule=ValueRule(holds=_are_principals, words="principals parted by semicolons, as User:alice;User:bob"),
        doc="Who may do everything, whatever ACLs say: principals parted by semicolons, as `User:alice;User:bob`. "
        "To be the same on all brokers.",
    ),
    Setting(
        name=ALLOW_WITHOUT_ACLS,
        type=Type.BOOLEAN,
        default="false",
        doc="Whether everybody may do everything with a resource that no ACL is about; false: only super users may.",
    ),
)
