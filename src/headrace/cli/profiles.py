"""Named profiles: the clusters that somebody works with, in `~/.config/headrace/config.toml`.

    default = "local"

    [profile.prod]
    bootstrap = "b1:9092,b2:9092"
    security.protocol = "SASL_SSL"
    sasl.username = "alice"
    sasl.password = "..."

Names are those of client files. The file is changed line by line, so that comments stay; only its owner may read it.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from headrace.client.properties import BadProperty, Located, checked_name, is_secret

from .console import Failure, bad_input, note

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SECTION: Final = re.compile(r"\s*\[\s*profile\s*\.\s*\"?([A-Za-z0-9_-]+)\"?\s*\]\s*(?:#.*)?")
_ANY_SECTION: Final = re.compile(r"\s*\[")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_\-.\s\"']+?)\s*=")
_DEFAULT: Final = "default"
_SHORT: Final = {"bootstrap": "bootstrap.servers", "registry": "schema.registry.url"}


def config_path() -> Path:
    """Where profiles are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "headrace" / "config.toml"


class Profiles:
    """The profiles in a file; one that is not there has none."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = config_path() if path is None else path
        self._text = _read(self.path)
        try:
            document = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise bad_input(f"{self.path}: {error}") from error
        unknown = next((name for name in document if name not in (_DEFAULT, "profile")), None)
        if unknown is not None:
            raise bad_input(f"{self.path}: '{unknown}' is not known; there are default and [profile.NAME]")
        tables = document.get("profile", {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise bad_input(f"{self.path}: each profile is a table, [profile.NAME]")
        self.default = document.get(_DEFAULT)
        if self.default is not None and not isinstance(self.default, str):
            raise bad_input(f'{self.path}: default is the name of a profile, such as default = "prod"')
        self._tables: dict[str, dict[str, str]] = {
            name: dict(_flat(table, "", f"{self.path} [profile.{name}]")) for name, table in tables.items()
        }

    @property
    def names(self) -> list[str]:
        return list(self._tables)

    def settings(self, name: str) -> dict[str, Located]:
        """The settings of a profile, each with the line on which it stands."""
        table = self._table(name)
        settings: dict[str, Located] = {}
        for key, value in table.items():
            where = f"{self.path}{self._line(name, key)}"
            try:
                settings[checked_name(key, where)] = Located(value, where)
            except BadProperty as error:
                raise bad_input(error.message) from error
        if any(is_secret(key) for key in table):
            warn_if_readable(self.path)
        return settings

    def _table(self, name: str) -> Mapping[str, str]:
        if name not in self._tables:
            from headrace.config.names import nearest

            known = nearest(name, self._tables) or "; `headrace profile list` shows those that are"
            raise bad_input(f"there is no profile '{name}' in {self.path}{known}")
        return self._tables[name]

    def _line(self, name: str, key: str) -> str:
        lines = self._text.splitlines()
        for number in self._lines_of(name) or ():
            if _key_of(lines[number]) == key:
                return f" line {number + 1}"
        return f" [profile.{name}]"

    def _lines_of(self, name: str) -> range | None:
        """The numbers of the lines of a profile, from 0, without its head; None where it has no table of its own."""
        lines = self._text.splitlines()
        heads = [number for number, line in enumerate(lines) if _ANY_SECTION.match(line)]
        for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
            match = _SECTION.fullmatch(lines[head])
            if match is not None and match[1] == name:
                return range(head + 1, end)
        return None

    # Changes

    def use(self, name: str) -> None:
        """Make a profile the one that counts where none is named."""
        self._table(name)
        lines = self._text.splitlines()
        top = next((number for number, line in enumerate(lines) if _ANY_SECTION.match(line)), len(lines))
        kept = [line for number, line in enumerate(lines) if number >= top or _key_of(line) != _DEFAULT]
        self._store([f"{_DEFAULT} = {_quoted(name)}", *([""] if len(kept) == len(lines) and lines else []), *kept])

    def set(self, name: str, values: Mapping[str, str], removed: frozenset[str] = frozenset()) -> None:
        """Set settings of a profile, which is made if it is not there, and remove some."""
        if _NAME.fullmatch(name) is None:
            raise bad_input(f"profile '{name}': a name has letters, digits, - and _, such as prod")
        lines = self._text.splitlines()
        if name not in self._tables:
            lines += [*([""] if lines else []), f"[profile.{name}]"]
            self._text = "\n".join(lines)
        section = self._section(name)
        gone = {*values, *removed}
        kept = [line for line in lines[section.start : section.stop] if _canonical(_key_of(line)) not in gone]
        while kept and not kept[-1].strip():
            kept.pop()
        added = [f"{key} = {_quoted(value)}" for key, value in values.items()]
        rest = lines[section.stop :]
        self._store([*lines[: section.start], *kept, *added, *([""] if rest else []), *rest])
        expected = {_canonical(k): v for k, v in self._tables.get(name, {}).items()} | dict(values)
        found = {_canonical(k): v for k, v in Profiles(self.path)._tables.get(name, {}).items()}
        if found != {k: v for k, v in expected.items() if k not in removed}:
            raise Failure(f"{self.path}: [profile.{name}] is written in a way that was not understood; look at it")

    def delete(self, name: str) -> None:
        """Remove a profile."""
        self._table(name)
        place, lines = self._section(name), self._text.splitlines()
        kept = [*lines[: place.start - 1], *lines[place.stop :]]
        if self.default == name:
            kept = [line for line in kept if _key_of(line) != _DEFAULT]
        self._store(kept)

    def _section(self, name: str) -> range:
        found = self._lines_of(name)
        if found is None:
            raise Failure(f"{self.path}: [profile.{name}] is not written as a table of its own; change it by hand")
        return found

    def _store(self, lines: list[str]) -> None:
        text = "\n".join(lines).strip("\n") + "\n"
        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Failure(f"{self.path} would not be TOML any more ({error}); change it by hand") from error
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(self.path)
        self._text = text


def warn_if_readable(path: Path) -> None:
    """Say so if others than the owner may read a file that holds a secret."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        note(f"headrace: {path} holds a password that others may read; chmod 600 {path}")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _flat(table: Mapping[str, Any], prefix: str, origin: str) -> Iterator[tuple[str, str]]:
    """`sasl.username` is a table in a table to TOML; and `"sasl.username"` is not."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.", origin)
        elif isinstance(value, bool):
            yield prefix + key, str(value).lower()
        elif isinstance(value, str | int | float):
            yield prefix + key, str(value)
        else:
            raise bad_input(f"{origin}: {prefix}{key} is neither a text nor a number")


def _key_of(line: str) -> str:
    match = _KEY.match(line)
    return "" if match is None else re.sub(r"[\s\"']", "", match[1])


def _canonical(key: str) -> str:
    return _SHORT.get(key, key)


def _quoted(text: str) -> str:
    """A basic string of TOML, which JSON's are, too, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
