"""`headrace txn`: see which transactions there are, and end one that hangs."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connecting
from .console import bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="See which transactions there are, and end one that hangs.",
    epilog=examples(
        "headrace txn list --state Ongoing", "headrace txn describe billing-1", "headrace txn abort billing-1"
    ),
    no_args_is_help=True,
)

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, by name.")]
PartitionNumber = Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")]


@app.command(
    "list",
    epilog=examples(
        "headrace txn list",
        "headrace txn list --state Ongoing --longer-than 60000",
        "headrace txn list --pattern 'billing-.*' --json",
    ),
)
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only in this state, such as Ongoing or PrepareCommit; may be repeated."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", help="Only of this producer id; may be repeated.")
    ] = None,
    longer_than: Annotated[
        int, typer.Option("--longer-than", metavar="MS", help="Only those that began more milliseconds ago.")
    ] = -1,
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="Only ids that this expression (RE2) matches as a whole.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List transactional ids, with what their coordinators know."""
    with connecting.transaction_operations(bootstrap, properties) as operations:
        transactions = operations.list_transactions(state or (), producer_id or (), longer_than, pattern)
    if json:
        say_json(
            [
                {"id": t.id, "state": t.state, "producer_id": t.producer_id, "coordinator": t.coordinator}
                for t in transactions
            ]
        )
    elif transactions:
        rows = [(t.id, t.state, t.producer_id, t.coordinator) for t in transactions]
        say_table(("ID", "STATE", "PRODUCER ID", "COORDINATOR"), rows)
    else:
        note("no transactional ids; they come with their first producer")


@app.command(epilog=examples("headrace txn describe billing-1", "headrace txn describe billing-1 --json"))
def describe(
    ids: Ids,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show state, producer, age and partitions of transactional ids."""
    with connecting.transaction_operations(bootstrap, properties) as operations:
        found = [_values(operations.describe_transaction(each)) for each in dict.fromkeys(ids)]
    if json:
        say_json(found)
        return
    for position, values in enumerate(found):
        if position:
            say("")
        for name, value in values.items():
            say(f"{name:<16}{_shown(value)}")


def _values(transaction: Any) -> dict[str, Any]:
    started = None if transaction.start_ms < 0 else datetime.fromtimestamp(transaction.start_ms / 1000, UTC).isoformat()
    return {
        "id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "started": started,
        "partitions": [f"{topic}-{index}" for topic, index in transaction.partitions],
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)


@app.command(epilog=examples("headrace txn producers orders --partition 0"))
def producers(
    topic: Topic,
    partition: PartitionNumber = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show who writes to a partition, and where open transactions begin."""
    with connecting.transaction_operations(bootstrap, properties) as operations:
        found = operations.producers(topic, partition)
    rows = [(p.producer_id, p.producer_epoch, p.coordinator_epoch, p.start_offset, p.last_timestamp) for p in found]
    names = ("producer_id", "producer_epoch", "coordinator_epoch", "start_offset", "last_timestamp")
    if json:
        say_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        head = tuple(name.replace("_", " ").upper() for name in names)
        say_table(head, [tuple("-" if value is None else value for value in row) for row in rows])
    else:
        note(f"no producers are remembered by topic '{topic}' partition {partition}")


@app.command(
    epilog=examples(
        "headrace txn abort billing-1",
        "headrace txn abort --topic orders --partition 0 --start-offset 1234",
    )
)
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A transactional id: its producer is shut out.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic in which a transaction hangs.")] = None,
    partition: PartitionNumber = 0,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="Where the hanging transaction begins.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """End an open transaction: that of a transactional id, everywhere, or one that hangs in a partition, there alone.

    The second is for transactions that no coordinator knows of any more; `headrace txn producers` shows where they
    begin.
    """
    if (transactional_id is None) == (topic is None):
        raise bad_input("give a transactional id, or --topic with --partition and --start-offset")
    if topic is not None and start_offset is None:
        raise bad_input("--start-offset is missing; `headrace txn producers` shows where transactions begin")
    with connecting.transaction_operations(bootstrap, properties) as operations:
        if transactional_id is not None:
            operations.describe_transaction(transactional_id)
            operations.fence(transactional_id)
            if json:
                say_json({"id": transactional_id, "state": "aborted"})
                return
            say(f"transactional id '{transactional_id}': its producer is shut out, and what it had open is aborted")
            return
        assert topic is not None
        assert start_offset is not None
        producer = operations.abort_hanging(topic, partition, start_offset)
    if json:
        found = {"topic": topic, "partition": partition, "producer_id": producer.producer_id, "state": "aborted"}
        say_json(found)
        return
    say(f"topic '{topic}' partition {partition}: the transaction of producer {producer.producer_id} is aborted")
