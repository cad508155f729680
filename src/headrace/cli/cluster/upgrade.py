"""`headrace cluster upgrade`: what became of the cluster's feature level."""

from collections.abc import Mapping
from typing import Any

from ..console import note, say, say_json, say_table


def report_upgrade(update: Mapping[str, Any], *, dry_run: bool, json: bool) -> None:
    """An answer to UpdateLevel, for people or programs."""
    before, after, newest = update["before"], update["after"], update["newest"]
    if json:
        say_json({"state": "planned" if dry_run else "done", **update})
        return
    if before == after:
        say(f"the feature level is {before}, {_remark(after, newest)}")
    else:
        say(f"the feature level {'would be raised' if dry_run else 'was raised'} from {before} to {after}")
    rows = sorted((int(broker), values) for broker, values in update["brokers"].items())
    say_table(
        ("BROKER", "VERSION", "LEVELS"),
        [(broker, values["version"] or "unknown", "-".join(map(str, values["levels"]))) for broker, values in rows],
    )
    if dry_run and before != after:
        note("brokers of a release that does not speak it cannot be members any more; a level is never lowered")


def _remark(level: int, newest: int) -> str:
    return "the newest that all brokers speak" if level >= newest else f"and all brokers speak {newest}"
