"""The files of a pipeline as one archive: what `deploy` takes from a directory, and a runner unpacks.

An archive comes out of a topic, so whoever unpacks it trusts nothing: paths stay inside, sizes and numbers are bounded
before anything is written, and there are regular files alone.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.config.names import shown

MOST_ARCHIVE_BYTES: Final = 600_000
"""Of the archive: with the rest of its record it stays below the 1 MB that brokers take by default."""
MOST_FILES: Final = 500
MOST_BYTES: Final = 16 << 20
"""Of all files together, unpacked."""
_BESIDE: Final = (".py", ".avsc", ".proto", ".desc", ".sql")
"""What travels with a single file: code and schemas beside it. Of a directory, all does."""
_DEFAULTS: Final = ("pipeline.yaml", "pipeline.yml", "pipeline.py")
_LEFT_OUT: Final = ("__pycache__",)
_MANIFEST: Final = "files.json"
_TIME: Final = (1980, 1, 1, 0, 0, 0)


class BadBundle(Exception):
    """The files cannot be a pipeline's; the message says which one and why."""


def collected(path: Path) -> tuple[str, dict[str, bytes]]:
    """The name of the pipeline's file, and all files by their names: of a directory all but hidden ones, of a file
    what is code or a schema beside it.
    """
    if path.is_dir():
        return _main_of(path), dict(_files(path, lambda _: True, deep=True))
    if not path.is_file():
        raise BadBundle(f"there is no file {path}; `headrace pipeline new DIR` writes a pipeline to start from")
    files = dict(_files(path.parent, lambda name: name.endswith(_BESIDE), deep=False))
    return path.name, {**files, path.name: path.read_bytes()}


def _main_of(directory: Path) -> str:
    for name in _DEFAULTS:
        if (directory / name).is_file():
            return name
    found = sorted(file.name for file in directory.iterdir() if file.suffix in (".yaml", ".yml"))
    if len(found) == 1:
        return found[0]
    told = f"there are {', '.join(found)}" if found else "there is no YAML file"
    raise BadBundle(f"{directory} has no pipeline.yaml or pipeline.py, and {told}; name the file itself")


def _files(directory: Path, takes: Callable[[str], bool], *, deep: bool) -> Iterator[tuple[str, bytes]]:
    size = count = 0
    for file in sorted(directory.rglob("*") if deep else directory.iterdir()):
        name = file.relative_to(directory)
        is_hidden = any(part.startswith(".") or part in _LEFT_OUT for part in name.parts)
        if is_hidden or file.is_symlink() or not file.is_file() or file.suffix == ".pyc" or not takes(file.name):
            continue
        count, size = count + 1, size + file.stat().st_size
        if count > MOST_FILES or size > MOST_BYTES:
            raise BadBundle(
                f"{directory} has more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB to deploy, {name} among them; "
                "give a directory with the pipeline's own files alone, and install packages where the service runs"
            )
        yield name.as_posix(), file.read_bytes()


def packed(files: Mapping[str, bytes]) -> bytes:
    """An archive, the same for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _TIME), files[name], zipfile.ZIP_DEFLATED)
    found = buffer.getvalue()
    if len(found) > MOST_ARCHIVE_BYTES:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        raise BadBundle(
            f"the pipeline's files are {len(found):,} bytes when packed, and {MOST_ARCHIVE_BYTES:,} is the most; the "
            f"largest are {', '.join(f'{name} ({len(files[name]):,})' for name in largest)}. Keep data in topics or "
            "where Spark reads it, and install packages where the service runs"
        )
    return found


def unpacked(archive: bytes) -> dict[str, bytes]:
    """The files of an archive; BadBundle for one that no `deploy` has made."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return _read(opened)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise BadBundle(f"the archive cannot be read: {error}") from error


def _read(opened: zipfile.ZipFile) -> dict[str, bytes]:
    infos = opened.infolist()
    if len(infos) > MOST_FILES:
        raise BadBundle(f"the archive has {len(infos)} files, and {MOST_FILES} is the most")
    room = MOST_BYTES
    files: dict[str, bytes] = {}
    for info in infos:
        require_inside(info.filename)
        with opened.open(info) as file:
            content = file.read(room + 1)
        room -= len(content)
        if room < 0:
            raise BadBundle(f"the archive unpacks to more than {MOST_BYTES >> 20} MiB")
        files[info.filename] = content
    return files


def require_inside(name: str) -> None:
    """Return if a name is that of a file within a directory."""
    path = PurePosixPath(name)
    bad = path.is_absolute() or not path.parts or ".." in path.parts or path.as_posix() != name
    if bad or "\\" in name or not name.isprintable() or len(name) > 500:
        raise BadBundle(f"'{shown(name)}' is not the name of a file of a pipeline")


def place(files: Mapping[str, bytes], directory: Path) -> None:
    """Make a directory have these files, and no longer those of an earlier deployment; what a run has made stays."""
    manifest = directory.parent / _MANIFEST
    before = json.loads(manifest.read_text()) if manifest.exists() else []
    directory.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps(sorted({*before, *files})))
    for name in before:
        if name not in files:
            (directory / name).unlink(missing_ok=True)
    for name, content in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    manifest.write_text(json.dumps(sorted(files)))
