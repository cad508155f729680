"""The options of a sink that say how values are encoded, by the names that Confluent's serializers have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.client.registry import RegistrySettings
from headrace.config.names import nearest, shown

from ..errors import OptionError
from ..options import text_or_file
from ..registry_options import REGISTRY_OPTIONS, registry_settings

FORMATS: Final = ("raw", "avro", "json-schema", "protobuf")

ENCODING_OPTIONS: Final[dict[str, str]] = {
    "format": "raw (values as they are), avro, json-schema or protobuf: the column value is a struct",
    "schema.registry.url": "the registry that has the schema, which values are framed with the id of",
    "subject": "of the schema; <topic>-value unless it is said",
    "schema": "the schema's text, or a file that has it; unless it is given, it is made of the columns",
    "messageName": "of protobuf: the message among those of the schema; the first unless it is said",
    "auto.register.schemas": "whether the schema is registered (true), or must be there (false)",
    "use.latest.version": "whether the schema is the latest of the subject",
    "normalize.schemas": "whether the registry looks for what means the same",
    "deadLetterTopic": "where rows go that the schema does not allow; they fail the query unless it is set",
} | dict.fromkeys(REGISTRY_OPTIONS[1:], "how to connect to the registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """What the options say; a schema's file is read in."""

    format: str
    registry: RegistrySettings
    subject: str
    topic: str = ""
    schema: str = field(default="", repr=False)
    message_name: str = ""
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False
    dead_letter_topic: str = ""


def read_encoding(given: Mapping[str, str]) -> EncodingOptions | None:
    """What a sink's options, whose names are in lower case, say of encoding; None if values stay as they are."""
    chosen = given.get("format", FORMATS[0]).strip().lower()
    if chosen not in FORMATS:
        known = f"set one of {', '.join(FORMATS)}{nearest(chosen, FORMATS)}"
        raise OptionError(f"format={shown(chosen)} is not known to the sink; {known}")
    if chosen == FORMATS[0]:
        _refuse_unused(given)
        return None
    registry = registry_settings(given)
    if registry is None:
        raise OptionError(f"format={chosen} needs the option schema.registry.url: where schemas are registered")
    options = EncodingOptions(
        format=chosen,
        registry=registry,
        subject=_subject(given),
        topic=given.get("topic", "").strip(),
        schema=_schema(given),
        message_name=given.get("messagename", "").strip(),
        auto_register=_flag(given, "auto.register.schemas", True),
        use_latest=_flag(given, "use.latest.version", False),
        normalize=_flag(given, "normalize.schemas", False),
        dead_letter_topic=given.get("deadlettertopic", "").strip(),
    )
    _check(options)
    return options


def _refuse_unused(given: Mapping[str, str]) -> None:
    for name in ENCODING_OPTIONS:
        if name != "format" and given.get(name.lower(), "").strip():
            raise OptionError(f"{name} has no use where values are written as they are; set format, or leave it out")


def _check(options: EncodingOptions) -> None:
    if options.use_latest and options.schema:
        raise OptionError("use.latest.version and schema contradict each other; set one of them")
    if options.message_name and options.format != "protobuf":
        raise OptionError("messageName has no use without format=protobuf; leave it out")
    if options.dead_letter_topic and options.dead_letter_topic == options.topic:
        raise OptionError("deadLetterTopic is the topic that is written; name another")


def _subject(given: Mapping[str, str]) -> str:
    topic, subject = given.get("topic", "").strip(), given.get("subject", "").strip()
    if not subject and not topic:
        raise OptionError("rows say which topic they go to: name the subject of their schema in the option subject")
    return subject or f"{topic}-value"


def _schema(given: Mapping[str, str]) -> str:
    text = given.get("schema", "").strip()
    return text_or_file("schema", text) if text else ""


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name}={shown(value)} must be true or false")
    return value == "true"
