"""Names in paths and bodies: what each may be. The same rule wherever a name is used."""

from typing import Final

from headrace.web.shapes import Integer, Text

TOPIC_PATTERN: Final = r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}"
TOPIC: Final = Text(
    pattern=TOPIC_PATTERN, least=1, most=249, wanted="a topic's name: up to 249 of a-z A-Z 0-9 . _ - and not . or .."
)
GROUP: Final = Text(
    pattern=r"[^\x00-\x1f\x7f]{1,255}",
    least=1,
    most=255,
    wanted="a group's name: 1 to 255 characters, none of them control",
)
PARTITION: Final = Integer(0, 2**31 - 1)
OFFSET: Final = Integer(0, 2**63 - 1)
TIMESTAMP: Final = Integer(0, 2**53)
