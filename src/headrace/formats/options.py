"""The options that say how values are decoded, as a user writes them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

from headrace.client.registry import LATEST, RegistrySettings
from headrace.config.names import nearest, shown

from .errors import OptionError
from .registry_options import REGISTRY_OPTIONS, registry_settings

FORMATS: Final = ("raw", "string", "json", "avro", "protobuf", "json-schema")
KEY_FORMATS: Final = ("raw", "string")
FRAMINGS: Final = ("none", "confluent")

Content = TypeVar("Content")

_ALL_BUT_RAW: Final = frozenset(FORMATS) - {"raw"}
_REGISTERED: Final = _ALL_BUT_RAW - {"string"}
_USED_BY: Final[dict[str, frozenset[str]]] = {
    "schema": frozenset({"json", "json-schema", "avro"}),
    "timeZone": frozenset({"json", "json-schema"}),
    "descriptorFile": frozenset({"protobuf"}),
    "messageName": frozenset({"protobuf"}),
    "emit.default.values": frozenset({"protobuf"}),
    "enums.as.ints": frozenset({"protobuf"}),
    "upcast.unsigned.ints": frozenset({"protobuf"}),
    "framing": _ALL_BUT_RAW,
    "subject": _REGISTERED,
    "subject.version": _REGISTERED,
    **dict.fromkeys(REGISTRY_OPTIONS, _REGISTERED),
}
_COMMON: Final = frozenset({"format", "keyFormat", "badRecords", "deadLetterTopic"})

OPTION_NAMES: Final[frozenset[str]] = _COMMON | frozenset(_USED_BY)
"""Every option that this package reads, as documented; they are taken in any case."""

_DEAD_LETTER: Final = "deadLetterTopic"
_SCHEMA_FILES: Final = (".json", ".ddl", ".sql", ".avsc", ".proto")
_PATH_STARTS: Final = ("/", "./", "../", "~", "file:")
_KAFKA: Final = "kafka."


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """What the options say, with the files they name read in: executors need not have them."""

    format: str = "raw"
    key_format: str = "raw"
    schema: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message_name: str = ""
    framing: str = "none"
    time_zone: str = "UTC"
    emit_defaults: bool = False
    enums_as_ints: bool = False
    upcast_unsigned: bool = False
    dead_letter_topic: str = ""
    """Where bad records go; empty if they stay, in a column of their own."""
    registry: RegistrySettings | None = None
    """Where the schemas of values are; None where values carry no ids."""
    subject: str = ""
    subject_version: str = LATEST
    include_headers: bool = False
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client's settings, by Kafka's names."""

    @property
    def decodes(self) -> bool:
        """Whether there is anything to decode."""
        return self.format != "raw" or self.key_format != "raw"

    @property
    def lacks_schema(self) -> bool:
        """Whether the reader's schema is still to be had from the subject."""
        return self.registry is not None and not self.schema and not self.descriptors

    @property
    def context(self) -> str:
        """The subject, where it says in which context of the registry ids are; empty for the default one."""
        return self.subject if self.subject.startswith(":.") else ""

    @property
    def reader_key(self) -> tuple[object, ...]:
        """The same for options that decode to the same columns."""
        flags = (self.emit_defaults, self.enums_as_ints, self.upcast_unsigned)
        return (self.format, self.schema, self.descriptors, self.message_name, self.time_zone, self.context, flags)


def read_options(options: Mapping[str, str]) -> FormatOptions:
    """The options of a source that are about decoding; OptionError says what is wrong with one and what to set."""
    given = {name.lower(): value for name, value in options.items()}
    chosen = _one_of(given, "format", FORMATS)
    key_format = _one_of(given, "keyFormat", KEY_FORMATS)
    _refuse_unused(given, chosen, key_format)
    registry = registry_settings(given)
    framing = _framing(given, chosen, registry is not None)
    chosen = chosen.removesuffix("-schema")
    return FormatOptions(
        format=chosen,
        key_format=key_format,
        schema=_schema(given, chosen, registry is not None),
        descriptors=_descriptors(given, chosen, registry is not None),
        message_name=_message_name(given, chosen, registry is not None),
        framing=framing,
        registry=registry,
        subject=_subject(given, chosen, registry is not None),
        subject_version=_subject_version(given),
        time_zone=_time_zone(given),
        emit_defaults=_flag(given, "emit.default.values"),
        enums_as_ints=_flag(given, "enums.as.ints"),
        upcast_unsigned=_flag(given, "upcast.unsigned.ints"),
        dead_letter_topic=_dead_letter_topic(given),
        include_headers=_flag(given, "includeHeaders"),
        client={name[len(_KAFKA) :]: value for name, value in given.items() if name.startswith(_KAFKA)},
    )


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = given.get(name.lower(), known[0]).strip().lower()
    if value not in known:
        raise OptionError(f"{name}={shown(value)} is not known; set one of {', '.join(known)}{nearest(value, known)}")
    return value


def _flag(given: Mapping[str, str], name: str) -> bool:
    return _one_of(given, name, ("false", "true")) == "true"


def _refuse_unused(given: Mapping[str, str], chosen: str, key_format: str) -> None:
    for name, users in _USED_BY.items():
        if name.lower() in given and chosen not in users:
            formats = " or ".join(f"format={user}" for user in FORMATS if user in users)
            raise OptionError(f"{name} has no use with format={chosen}; set {formats}, or leave it out")
    for name in ("badRecords", _DEAD_LETTER):
        if name.lower() in given and chosen == key_format == "raw":
            raise OptionError(f"{name} has no use where nothing is decoded; set format or keyFormat, or leave it out")


def _framing(given: Mapping[str, str], chosen: str, has_registry: bool) -> str:
    """Where there is a registry, values carry ids unless it is said that they do not."""
    if "framing" not in given and has_registry:
        return "confluent"
    framing = _one_of(given, "framing", FRAMINGS)
    if chosen in _REGISTERED and not has_registry and (framing == "confluent" or chosen == "json-schema"):
        why = "framing=confluent" if framing == "confluent" else f"format={chosen}"
        raise OptionError(
            f"{why} needs the option schema.registry.url: values carry the id of the schema that they were written "
            "with, and only the registry knows which one that is"
        )
    return framing


def _subject(given: Mapping[str, str], chosen: str, has_registry: bool) -> str:
    """The subject of a topic's values, as most serializers name it, unless it is said."""
    subject = given.get("subject", "").strip()
    has_own = bool(given.get("schema", "").strip() or given.get("descriptorfile", "").strip())
    if subject or not has_registry or has_own or chosen not in _REGISTERED:
        return subject
    topics = _named_topics(given)
    if len(topics) != 1:
        raise OptionError(
            "several topics are read, which may have different schemas: name the subject that has the schema to read "
            f"them with in the option subject, or give it with {_how_to_give_a_schema(chosen)}"
        )
    return f"{topics[0]}-value"


def _named_topics(given: Mapping[str, str]) -> list[str]:
    """The topics that are read, as far as they are named."""
    names = [name.strip() for name in given.get("subscribe", "").split(",") if name.strip()]
    try:
        assigned = json.loads(given.get("assign", "{}"))
    except ValueError:
        return names
    return [*names, *assigned] if isinstance(assigned, dict) else names


def _subject_version(given: Mapping[str, str]) -> str:
    version = given.get("subject.version", LATEST).strip().lower()
    if version != LATEST and not (version.isdecimal() and int(version) > 0):
        raise OptionError(f"subject.version={shown(version)} is not a version; set {LATEST}, or a number from 1 on")
    return version


def _how_to_give_a_schema(chosen: str) -> str:
    return "descriptorFile and messageName" if chosen == "protobuf" else "the option schema"


_SCHEMA_WORDS: Final = {
    "json": "a Spark schema, as DDL such as 'id BIGINT, name STRING' or as JSON, or the path of a file that has it",
    "avro": "the Avro schema in JSON, or the path of an .avsc file",
}


def _schema(given: Mapping[str, str], chosen: str, has_registry: bool) -> str:
    text = given.get("schema", "").strip()
    if chosen not in _SCHEMA_WORDS or (not text and has_registry):
        return ""
    if not text:
        raise OptionError(
            f"format={chosen} needs the option schema: {_SCHEMA_WORDS[chosen]}; "
            "or schema.registry.url, to have it from there"
        )
    return text_or_file("schema", text)


def text_or_file(name: str, text: str) -> str:
    """An option's text, or what is in the file that it names."""
    return _read(name, text, lambda path: path.read_text("utf-8")) if _is_path(text) else text


def _is_path(text: str) -> bool:
    return "\n" not in text and (text.startswith(_PATH_STARTS) or text.lower().endswith(_SCHEMA_FILES))


def _read(name: str, location: str, read: Callable[[Path], Content]) -> Content:
    path = Path(location.removeprefix("file://").removeprefix("file:")).expanduser()
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise OptionError(f"{name}: cannot read the file '{path}': {reason}") from error


def _descriptors(given: Mapping[str, str], chosen: str, has_registry: bool) -> bytes:
    location = given.get("descriptorfile", "").strip()
    if chosen != "protobuf" or (not location and has_registry):
        return b""
    if not location:
        raise OptionError(
            "format=protobuf needs the option descriptorFile: the path of a file made by "
            "'protoc --include_imports --descriptor_set_out=FILE'; or schema.registry.url, to have it from there"
        )
    return _read("descriptorFile", location, Path.read_bytes)


def _message_name(given: Mapping[str, str], chosen: str, has_registry: bool) -> str:
    name = given.get("messagename", "").strip()
    if chosen == "protobuf" and not name and not (has_registry and not given.get("descriptorfile", "").strip()):
        raise OptionError(
            "format=protobuf needs the option messageName: the message that values hold, as package.Message"
        )
    return name


def _time_zone(given: Mapping[str, str]) -> str:
    name = given.get("timezone", "UTC").strip()
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise OptionError(f"timeZone={name} is not a time zone; set one such as UTC or Europe/Paris") from error
    return name


def _dead_letter_topic(given: Mapping[str, str]) -> str:
    target, _, named = given.get("badrecords", "").strip().partition("=")
    topic = given.get(_DEAD_LETTER.lower(), named).strip()
    if target.lower() not in ("", "column", _DEAD_LETTER.lower()):
        raise OptionError(f"badRecords={target} is not known; set column, or {_DEAD_LETTER}=<topic>")
    if target.lower() == "column" and topic:
        raise OptionError(f"badRecords=column and {_DEAD_LETTER}={topic} contradict each other; set one of them")
    if target.lower() == _DEAD_LETTER.lower() and not topic:
        raise OptionError(f"badRecords={_DEAD_LETTER} needs a topic; set badRecords={_DEAD_LETTER}=<topic>")
    if topic and _is_read(topic, given):
        raise OptionError(f"{_DEAD_LETTER}={topic} is a topic that is read; its letters would be read again for ever")
    return topic


def _is_read(topic: str, given: Mapping[str, str]) -> bool:
    """Whether a topic is among those to read; what is no pattern or no JSON is left to the source to refuse."""
    if topic in [name.strip() for name in given.get("subscribe", "").split(",")]:
        return True
    try:
        is_matched = re.fullmatch(given.get("subscribepattern", "").strip(), topic) is not None
        return is_matched or topic in json.loads(given.get("assign", "{}"))
    except (re.error, ValueError, TypeError):
        return False
