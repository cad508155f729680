"""`headrace log`: logs of partitions: read and checked on disk, and mended where they have failed on a broker."""

import json as json_lines
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connecting
from .console import ExitCode, bad, bad_input, coloured, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json

if TYPE_CHECKING:
    from .log_files import LogDirectory

app = typer.Typer(
    help="Read, check and mend the logs of partitions.",
    epilog=examples("headrace log verify /var/lib/headrace", "headrace log refetch orders --partition 0 --broker 2"),
    no_args_is_help=True,
)

Place = Annotated[
    Path, typer.Argument(metavar="PATH", help="A data directory, the directory of a partition, or a .log file.")
]


@app.command(
    epilog=examples(
        "headrace log dump data/orders-0",
        "headrace log dump data/orders-0/00000000000000000000.log --records",
        "headrace log dump data/orders-0 --from 1500 --count 10 --json",
        "headrace log dump data/orders-0/00000000000000000000.index",
    )
    + "\n\nExit codes: 0 all of it is sound, 1 something is damaged."
)
def dump(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A data or a partition's directory, or a .log, .index or .timeindex file."),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Also the records of each batch.")] = False,
    from_: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="Batches from this offset on.")] = 0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many batches.")] = None,
    json: Json = False,
) -> None:
    """Print the record batches of logs on disk, without a broker. Nothing is changed."""
    from .log_files import find_logs

    if path.suffix in (".index", ".timeindex"):
        _dump_index(path, json)
        return
    left, is_sound = count, True
    for log in find_logs(path):
        if not json:
            say(f"log  {log.name}")
        for values in _batches(log, from_, records):
            if left == 0:
                break
            if isinstance(values, str):
                is_sound = False
                note(f"headrace: {values}")
                continue
            left = None if left is None else left - 1
            say_json({"log": log.name, **values}) if json else _say_batch(values)
    if not is_sound:
        raise typer.Exit(ExitCode.FAILED)


def _batches(log: "LogDirectory", from_: int, records: bool) -> Iterator[dict[str, Any] | str]:
    from .log_files import dump as dump_segment

    for number, segment in enumerate(log.segments):
        if number + 1 < len(log.segments) and log.segments[number + 1].base_offset <= from_:
            continue
        for found in dump_segment(segment, records=records):
            if not isinstance(found, dict):
                yield str(found)
            elif found["last_offset"] >= from_:
                yield found


def _say_batch(values: dict[str, Any]) -> None:
    time = datetime.fromtimestamp(values["max_timestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
    parts = [
        f"offsets {values['base_offset']}-{values['last_offset']}",
        f"position {values['position']}",
        f"size {values['size']}",
        f"records {values['record_count']}",
        f"{values['timestamp_type']} {time}",
        f"codec {values['codec']}",
        f"leader epoch {values['leader_epoch']}",
    ]
    if values["producer_id"] >= 0:
        producer = f"{values['producer_id']}/{values['producer_epoch']}"
        parts.append(f"producer {producer} sequence {values['base_sequence']}")
    parts += [word for word in ("transactional", "control") if values[f"is_{word}"]]
    say("  ".join([*parts, f"crc {values['crc']:#010x}"]))
    for record in values.get("records", ()):
        say(f"  {json_lines.dumps(record, ensure_ascii=False)}")


def _dump_index(path: Path, json: bool) -> None:
    from headrace.storage.inspection import decode_offset_index, decode_time_index

    if not path.is_file() or not path.stem.isdecimal():
        raise bad_input(f"{path} is not the index of a segment, such as {0:020d}.index")
    base, data = int(path.stem), path.read_bytes()
    if path.suffix == ".index":
        segment = path.with_suffix(".log")
        index = decode_offset_index(data, segment.stat().st_size if segment.is_file() else 2**63)
        names = ("offset", "position")
        rows = None if index is None else [(base + o, p) for o, p in zip(index.offsets, index.positions, strict=True)]
    else:
        times = decode_time_index(data)
        names = ("timestamp", "offset")
        rows = None if times is None else [(t, base + o) for t, o in zip(times.timestamps, times.offsets, strict=True)]
    if rows is None:
        note(f"headrace: {path}: it is damaged, or not that of its segment; a broker builds it anew when it starts")
        raise typer.Exit(ExitCode.FAILED)
    if json:
        say_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        say_table(tuple(name.upper() for name in names), rows)


@app.command(
    epilog=examples(
        "headrace log verify /var/lib/headrace",
        "headrace log verify data/orders-0 --records",
        "headrace log verify data --json",
    )
    + "\n\nExit codes: 0 all of it is sound, 1 something is damaged."
)
def verify(
    path: Place,
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Also decompress and read every record; takes longer.")
    ] = False,
    json: Json = False,
) -> None:
    """Check logs on disk, without a broker: every batch against its CRC, every index entry against its batch.

    While a broker runs on the directory, a write at the end of a log that is under way is no damage. Without one, such
    an end is what a crash leaves; the broker cuts it off when it starts. Nothing is changed here.
    """
    from .log_files import find_logs, inspect, is_in_use

    logs, is_live = find_logs(path), is_in_use(path)
    totals = {"logs": len(logs), "segments": 0, "batches": 0, "records": 0, "bytes": 0}
    faults: list[dict[str, Any]] = []
    for log in logs:
        next_offset = 0
        for segment in log.segments:
            report = inspect(segment, records=records)
            totals["segments"] += 1
            totals["batches"] += report.batches
            totals["records"] += report.records
            totals["bytes"] += report.size
            if segment.base_offset < next_offset:
                reason = f"it begins at offset {segment.base_offset}, and the one before ends with {next_offset - 1}"
                faults.append({"log": log.name, "path": str(segment.path), "position": None, "reason": reason})
            next_offset = max(next_offset, report.next_offset)
            faults += [
                {"log": log.name, "path": fault.path, "position": fault.position, "reason": fault.reason}
                for fault in report.faults
                if not (is_live and segment.is_last and (fault.is_at_end or fault.position is None))
            ]
    _report_faults(totals, faults, json)


def _report_faults(totals: dict[str, int], faults: list[dict[str, Any]], json: bool) -> None:
    if json:
        say_json({"sound": not faults, **totals, "faults": faults})
    else:
        for fault in faults:
            where = "" if fault["position"] is None else f" at position {fault['position']}"
            say(f"{coloured(bad('damaged'))}  {fault['path']}{where}: {fault['reason']}")
        found = f"{totals['logs']} logs, {totals['segments']} segments, {totals['batches']} batches"
        say(f"{found}, {totals['records']} records, {totals['bytes']} bytes: {len(faults) or 'no'} faults")
    if faults:
        raise typer.Exit(ExitCode.FAILED)


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
    with connecting.operations(bootstrap, properties) as operations:
        operations.refetch(broker, topic, partition, start_empty=force)
    if json:
        say_json({"topic": topic, "partition": partition, "broker": broker, "started_empty": force})
        return
    say(f"{topic}-{partition} on broker {broker} begins anew; the damaged directory was set aside")
    note("see when it is in sync again: headrace cluster describe")
