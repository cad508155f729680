"""`headrace schema`: the schemas of a registry."""

import json as json_text
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from .console import ExitCode, Failure, bad, bad_input, coloured, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .registries import RegistryUrl, read_schema, require_registry

if TYPE_CHECKING:
    from headrace.client.registry import RegisteredSchema, SchemaReference

app = typer.Typer(
    help="List, show, register, check and delete the schemas of a registry.",
    epilog=examples(
        "headrace schema list", "headrace schema register orders-value order.avsc", "headrace schema show orders-value"
    ),
    no_args_is_help=True,
)

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, such as orders-value.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE", help="The schema: .avsc, .json or .proto; - for stdin.")]
SchemaKind = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="AVRO, JSON or PROTOBUF; else as the file tells.")
]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="A schema that it refers to; may be repeated."),
]
T = TypeVar("T")
LATEST: Final = "latest"
_LEVELS: Final = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


@app.command("list", epilog=examples("headrace schema list", "headrace schema list --prefix orders --json"))
def list_(
    prefix: Annotated[str, typer.Option("--prefix", help="Only subjects that begin with this.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Also what was deleted, but not for good.")] = False,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List subjects with their versions."""
    client = require_registry(registry, bootstrap, properties)
    names = [name for name in client.subjects(deleted=deleted) if name.startswith(prefix)]
    found = [(name, client.versions(name, deleted=deleted)) for name in names]
    if json:
        say_json([{"subject": name, "versions": versions} for name, versions in found])
    elif found:
        say_table(("SUBJECT", "VERSIONS"), [(name, ", ".join(map(str, versions))) for name, versions in found])
    else:
        note("no subjects yet; they come with `headrace schema register SUBJECT FILE`")


@app.command(
    epilog=examples(
        "headrace schema show orders-value",
        "headrace schema show orders-value --version 2",
        "headrace schema show --id 7 --json",
    )
)
def show(
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]", help="The subject.")] = None,
    version: Annotated[str, typer.Option("--version", metavar="N|latest", help="Which version.")] = LATEST,
    id_: Annotated[int | None, typer.Option("--id", min=0, help="The schema of this id instead.")] = None,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Print a schema: its text to standard output, what it is to standard error."""
    if (subject is None) == (id_ is None):
        raise bad_input("say which schema: either SUBJECT or --id ID")
    client = require_registry(registry, bootstrap, properties)
    if id_ is not None:
        by_id = client.schema(id_)
        if by_id is None:
            raise Failure(f"{client.name} has no schema {id_}")
        schema = by_id
    else:
        assert subject is not None
        schema = _answer(lambda: client.version(subject, _version(version)))
    if json:
        say_json(_values(schema))
        return
    place = f"{schema.subject} version {schema.version}, " if schema.subject else ""
    note(f"{place}id {schema.id}, {schema.type}")
    for one in schema.references:
        note(f"refers to {one.name}: {one.subject} version {one.version}")
    say(_pretty(schema))


@app.command(
    epilog=examples(
        "headrace schema register orders-value order.avsc",
        "headrace schema register orders-value order.proto --reference common.proto=common:1",
        "headrace schema register orders-value - --type JSON < order.json",
    )
)
def register(
    subject: Subject,
    file: SchemaFile,
    type_: SchemaKind = None,
    reference: References = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Let spelling and order not matter.")] = False,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Register a schema as the next version of a subject; one that is there already keeps its version."""
    from headrace.client.registry import RegistryRefusal

    schema = _schema(file, type_, reference)
    client = require_registry(registry, bootstrap, properties)
    try:
        schema_id = client.register(subject, schema, normalize=normalize)
    except RegistryRefusal as error:
        if not error.is_incompatible:
            raise
        raise Failure(f"subject '{subject}': {error.message}; `headrace schema check` says why") from error
    version = client.version(subject).version
    if json:
        say_json({"subject": subject, "id": schema_id, "latest_version": version})
    else:
        say(f"{subject}: id {schema_id}, latest version {version}")


@app.command(
    epilog=examples(
        "headrace schema check orders-value order.avsc",
        "headrace schema check orders-value order.avsc --version 2 --json",
    )
    + "\n\nExit codes: 0 compatible, 1 not compatible."
)
def check(
    subject: Subject,
    file: SchemaFile,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N|latest", help="Only against this version.")
    ] = None,
    type_: SchemaKind = None,
    reference: References = None,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Say whether a schema could be the next version of a subject, and why not. Nothing is registered."""
    schema = _schema(file, type_, reference)
    client = require_registry(registry, bootstrap, properties)
    chosen = None if version is None else _version(version)
    reasons = _answer(lambda: client.incompatibilities(subject, schema, chosen))
    level = client.compatibility(subject)
    if json:
        say_json({"subject": subject, "compatible": not reasons, "level": level, "reasons": reasons})
    elif not reasons:
        say(f"{subject}: compatible ({level})")
    else:
        say(f"{subject}: {coloured(bad('not compatible'))} ({level})")
        for reason in reasons:
            say(f"  {reason}")
    if reasons:
        raise typer.Exit(ExitCode.FAILED)


@app.command(
    epilog=examples(
        "headrace schema delete orders-value --version 2",
        "headrace schema delete orders-value --yes",
        "headrace schema delete orders-value --permanent --yes",
    )
)
def delete(
    subject: Subject,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N|latest", help="Only this version; else all of them.")
    ] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="For good, what was deleted already: values with it stay unreadable.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Delete a subject, or a version of it. What was written with it can be read until it is deleted for good."""
    what = f"subject '{subject}'" if version is None else f"version {version} of subject '{subject}'"
    if not yes:
        if not sys.stdin.isatty():
            raise bad_input(f"deleting {what} needs --yes, as there is no terminal to ask on")
        if not typer.confirm(f"Delete {what}{' for good' if permanent else ''}?", err=True):
            raise Failure("nothing was deleted")
    client = require_registry(registry, bootstrap, properties)
    chosen = None if version is None else _version(version)
    gone = _answer(lambda: client.delete(subject, chosen, permanent=permanent))
    if json:
        say_json({"subject": subject, "deleted": gone, "permanent": permanent})
    else:
        say(f"{subject}: version {', '.join(map(str, gone))} deleted{' for good' if permanent else ''}")


@app.command(
    epilog=examples(
        "headrace schema compatibility",
        "headrace schema compatibility orders-value",
        "headrace schema compatibility orders-value --set FULL",
        "headrace schema compatibility orders-value --unset",
    )
)
def compatibility(
    subject: Annotated[
        str | None, typer.Argument(metavar="[SUBJECT]", help="The subject; without one, what holds for all others.")
    ] = None,
    set_: Annotated[str | None, typer.Option("--set", metavar="LEVEL", help=f"One of {', '.join(_LEVELS)}.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Take back what was set.")] = False,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show or set which changes of a schema are allowed."""
    if set_ is not None and unset:
        raise bad_input("--set and --unset exclude each other; keep one")
    level = None if set_ is None else set_.upper()
    if level is not None and level not in _LEVELS:
        raise bad_input(f"--set {set_}: there are {', '.join(_LEVELS)}")
    client = require_registry(registry, bootstrap, properties)
    if level is not None or unset:
        current = _answer(lambda: client.set_compatibility(level, subject))
    else:
        current = _answer(lambda: client.compatibility(subject))
    if json:
        say_json({"subject": subject, "level": current})
    else:
        say(f"{subject or 'all subjects'}: {current}")


@app.command(
    epilog=examples(
        "headrace schema export schemas.txt",
        "headrace schema export - | kcat -P -b other:9092 -t _schemas -K $'\\t'",
    )
)
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write to; - for standard output.")],
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Write all that a registry holds as records of Confluent's topic `_schemas`: a line each, key, tab, value."""
    from headrace.registry.confluent_topic import topic_records, written_line
    from headrace.registry.moving import held_by

    contents = held_by(require_registry(registry, bootstrap, properties))
    lines = [written_line(key, value) for key, value in topic_records(contents)]
    counts = {"versions": len(contents.versions), "records": len(lines)}
    if str(file) == "-":
        for line in lines:
            say(line)
        return
    try:
        file.write_text("".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise bad_input(f"{file} cannot be written: {error.strerror}") from error
    if json:
        say_json(counts)
    else:
        say(f"{file}: {counts['versions']} versions in {counts['records']} records")


@app.command(
    "import",
    epilog=examples(
        "headrace schema import schemas.txt",
        "headrace schema import --topic _schemas -b old:9092 --registry http://127.0.0.1:8080",
    )
    + "\n\nExit codes: 0 everything is there, 1 something could not be put there.",
)
def import_(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Records of the topic, a line each; - for stdin.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Read this topic of the brokers instead of a file.")
    ] = None,
    registry: RegistryUrl = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Put what a registry of Confluent's format keeps in its topic into a registry: ids, versions, settings, what was
    deleted softly. It may be run again."""
    if (file is None) == (topic is None):
        raise bad_input("say what to read: either FILE or --topic TOPIC")
    from headrace.registry.confluent_topic import read_lines, read_topic
    from headrace.registry.moving import move_into

    if topic is not None:
        contents = read_topic(_topic_records(topic, bootstrap, properties))
    else:
        assert file is not None
        contents = read_topic(read_lines(read_schema(file).split("\n")))
    client = require_registry(registry, bootstrap, properties)
    troubles = [*contents.passed_over, *move_into(client, contents)]
    if json:
        say_json({"versions": len(contents.versions), "troubles": troubles})
    else:
        say(f"{len(contents.versions)} versions of {len({s for s, _ in contents.versions})} subjects")
        for trouble in troubles:
            note(trouble)
    if troubles:
        raise typer.Exit(ExitCode.FAILED)


def _topic_records(topic: str, bootstrap: str, properties: list[str] | None) -> Iterator[tuple[str, str | None]]:
    """Keys and values of a topic with one partition."""
    from .connecting import admin, record_reader

    client = admin(bootstrap, properties)
    partitions = client.partition_numbers(topic)
    if partitions != [0]:
        raise bad_input(f"--topic {topic} has {len(partitions)} partitions; a registry's topic has one")
    starts, ends = client.start_offsets(topic, [0]), client.end_offsets(topic, [0])
    for message in record_reader(bootstrap, properties, topic, starts, ends).messages():
        if message is not None:
            key, value = message.key() or b"", message.value()
            yield key.decode("utf-8", "replace"), None if value is None else value.decode("utf-8", "replace")


def _answer(call: Callable[[], T]) -> T:
    from headrace.client.registry import NotRegistered

    try:
        return call()
    except NotRegistered as error:
        raise Failure(f"{error.message}; `headrace schema list` shows what there is") from error


def _schema(file: Path, type_: str | None, reference: list[str] | None) -> "RegisteredSchema":
    from headrace.client.registry import RegisteredSchema
    from headrace.registry.serde import schema_type_of

    text = read_schema(file)
    kind = (type_ or schema_type_of(str(file), text)).upper()
    if kind not in ("AVRO", "JSON", "PROTOBUF"):
        raise bad_input(f"--type {type_}: there are AVRO, JSON and PROTOBUF")
    return RegisteredSchema(text=text, type=kind, references=tuple(_reference(one) for one in reference or ()))


def _reference(text: str) -> "SchemaReference":
    from headrace.client.registry import SchemaReference

    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not version.isdecimal():
        raise bad_input(f"--reference '{text}' is not NAME=SUBJECT:VERSION, such as common.proto=common:1")
    return SchemaReference(name, subject, int(version))


def _version(text: str) -> int | str:
    if text != LATEST and not text.isdecimal():
        raise bad_input(f"--version '{text}' is neither a number nor latest")
    return text if text == LATEST else int(text)


def _values(schema: "RegisteredSchema") -> dict[str, object]:
    return {
        "subject": schema.subject or None,
        "version": schema.version if schema.subject else None,
        "id": schema.id,
        "type": schema.type,
        "references": [one._asdict() for one in schema.references],
        "schema": schema.text,
    }


def _pretty(schema: "RegisteredSchema") -> str:
    if schema.type == "PROTOBUF":
        return schema.text.rstrip()
    return json_text.dumps(json_text.loads(schema.text), ensure_ascii=False, indent=2)
