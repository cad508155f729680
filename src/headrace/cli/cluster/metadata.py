"""`headrace cluster backup`, `restore` and `upgrade`: commands about the metadata and its formats.

What they need is imported when they run.
"""

from pathlib import Path
from typing import Annotated

import typer

from .. import connecting
from ..console import examples
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json

Store = Annotated[
    str | None,
    typer.Option("--store", metavar="zookeeper://H:P,H:P/PATH", help="Where the cluster keeps its metadata."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings of a broker: how ZooKeeper is reached, and who the brokers are to it."),
]
LoneData = Annotated[Path | None, typer.Option("--data", help="The data directory of a lone broker, which is stopped.")]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    store: Store = None,
    data: LoneData = None,
    config: Config = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Back up the cluster's metadata: topics, their ids and partitions, settings, producer ids, the cluster's id.

    Records are not in it, nor are offsets of groups, which are records. The cluster goes on meanwhile; a lone broker
    has to be stopped. The file holds secrets, and only its owner can read it.
    """
    from .backup import store_location, take_backup

    take_backup(store_location(store, data, config), file, overwrite=force, json=json)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `headrace cluster backup` wrote.")],
    store: Store = None,
    data: LoneData = None,
    config: Config = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what the store holds of this cluster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be restored; change nothing.")] = False,
    json: Json = False,
) -> None:
    """Put the cluster's metadata back from a backup, into a store that has lost it.

    No broker may be registered. Logs are left as they are: brokers that hold more than the backup knows notice that it
    is old, and partitions are led by the replica whose log reaches furthest.
    """
    from .backup import restore_backup, store_location

    restore_backup(store_location(store, data, config), file, force=force, dry_run=dry_run, json=json)


def secure_store(
    store: Store = None,
    config: Config = None,
    open_: Annotated[bool, typer.Option("--open", help="Let everybody read and change it again.")] = False,
    json: Json = False,
) -> None:
    """Have what a cluster keeps in ZooKeeper belong to its brokers alone, by ACLs; the cluster goes on meanwhile.

    First give all brokers the credentials (HEADRACE_ZOOKEEPER_AUTH or headrace.zookeeper.auth), by a rolling restart:
    who has none can read nothing afterwards. With zookeeper.set.acl=true what brokers write later is theirs, too.
    """
    from .backup import secure_store as change
    from .backup import store_location

    change(store_location(store, None, config), is_open=open_, json=json)


def upgrade(
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="LEVEL", help="The level.", show_default="the newest that all speak"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Raise the cluster's feature level, after all brokers were replaced by a later release.

    Until then brokers of both releases use the formats of the earlier one, and each can be replaced by it again. A
    level is never lowered: afterwards brokers that do not speak it are refused.
    """
    from .upgrade import report_upgrade

    with connecting.operations(bootstrap, properties) as operations:
        report_upgrade(operations.update_level(to, dry_run=dry_run), dry_run=dry_run, json=json)


def register(app: typer.Typer) -> None:
    """Add the commands to `headrace cluster`."""
    app.command(
        epilog=examples(
            "headrace cluster backup orders-2026-05-01.backup --store zookeeper://zk1:2181,zk2:2181,zk3:2181/orders",
            "headrace cluster backup lone.backup --data ./data",
        )
    )(backup)
    app.command(
        epilog=examples(
            "headrace cluster restore orders-2026-05-01.backup --store zookeeper://zk1:2181/orders --dry-run",
            "headrace cluster restore orders-2026-05-01.backup --store zookeeper://zk1:2181/orders",
            "headrace cluster restore lone.backup --data ./data",
        )
    )(restore)
    app.command(
        "secure-store",
        epilog=examples(
            "HEADRACE_ZOOKEEPER_AUTH=brokers:secret headrace cluster secure-store --store zookeeper://zk1:2181/orders",
            "headrace cluster secure-store --config server.properties",
            "headrace cluster secure-store --config server.properties --open",
        ),
    )(secure_store)
    app.command(
        epilog=examples(
            "headrace cluster upgrade --dry-run", "headrace cluster upgrade", "headrace cluster upgrade --to 2 --json"
        )
    )(upgrade)
