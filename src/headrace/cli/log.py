"""`headrace log`: logs of partitions that have failed on a broker."""

from typing import Annotated

import typer

from .console import examples, note, say, say_json
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, bootstrap_list, pairs

app = typer.Typer(
    help="Mend the log of a partition that has failed on a broker.",
    epilog=examples("headrace log refetch orders --partition 0 --broker 2"),
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Mend the log of a partition that has failed on a broker."""


@app.command(
    epilog=examples(
        "headrace log refetch orders --partition 0 --broker 2",
        "headrace log refetch audit --partition 3 --broker 1 --force",
    )
)
def refetch(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")],
    broker: Annotated[int, typer.Option("--broker", metavar="ID", help="The broker whose log has failed.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where no other replica is in sync: what only this log held is lost.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Fetch the log of a partition that has failed on a broker from the partition's leader again.

    The damaged directory is set aside, never deleted: its name ends in -damaged. The replica is in sync again when it
    has fetched everything. Where no other replica is in sync this is refused; with --force the log starts empty.
    Removing the directory while the broker is stopped has the same effect.
    """
    from .lean import lean_imports

    with lean_imports():
        from headrace.ops.operations import Operations

    with Operations(bootstrap_list(bootstrap), pairs(properties, "--property")) as operations:
        operations.refetch(broker, topic, partition, start_empty=force)
    if json:
        say_json({"topic": topic, "partition": partition, "broker": broker, "started_empty": force})
        return
    say(f"{topic}-{partition} on broker {broker} begins anew; the damaged directory was set aside")
    note("see when it is in sync again: headrace cluster describe")
