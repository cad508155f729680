"""The `headrace` command: which commands there are.

Each command's module imports what is heavy (the client library, the server, tables) inside its functions,
so that `headrace --help` and the first line of any command come at once.
"""

from typing import Annotated

import typer

from headrace import __version__

from . import (
    acl,
    audit,
    broker,
    cert,
    cluster,
    config,
    consume,
    dlq,
    doctor,
    gateway,
    group,
    log,
    node,
    pipeline,
    produce,
    profile,
    queue,
    quota,
    schedule,
    schema,
    sql,
    tenant,
    token,
    top,
    topic,
    txn,
    up,
    user,
    worker,
    zookeeper,
)
from .arguments import hide_secrets
from .client_options import add_client_options
from .console import FriendlyGroup, examples, say

app = typer.Typer(
    cls=FriendlyGroup,
    name="headrace",
    help="A message broker that speaks Kafka's protocol.",
    epilog=examples("headrace up", "headrace topic create orders --partitions 3", "headrace consume orders --follow")
    + "\n\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 no broker answers, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """A message broker that speaks Kafka's protocol."""


up.register(app)
broker.register(app)
node.register(app)
gateway.register(app)
zookeeper.register(app)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(cluster.app, name="cluster")
app.add_typer(config.app, name="config")
app.add_typer(acl.app, name="acl")
app.add_typer(user.app, name="user")
app.add_typer(quota.app, name="quota")
app.add_typer(tenant.app, name="tenant")
app.add_typer(token.app, name="token")
app.add_typer(cert.app, name="cert")
app.add_typer(schema.app, name="schema")
app.add_typer(txn.app, name="txn")
app.add_typer(log.app, name="log")
app.add_typer(profile.app, name="profile")
produce.register(app)
consume.register(app)
sql.register(app)
app.add_typer(queue.app, name="queue")
app.add_typer(dlq.app, name="dlq")
app.add_typer(schedule.app, name="schedule")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(worker.app, name="worker")
audit.register(app)
top.register(app)
doctor.register(app)
add_client_options(app)


def main() -> None:
    """The entry point of the installed command."""
    hide_secrets()
    app(prog_name="headrace")
