"""What a connector is: a class with options, and a few methods that a pipeline calls.

A source tells positions, as JSON, and gives the rows between two of them, the same ones whenever it is asked again:

    class Ticks(SourceConnector):
        options = {"every": Option("seconds between two ticks", default="1")}

        def schema(self) -> str:
            return "number BIGINT"

        def initial(self) -> Position:
            return {"number": 0}

        def latest(self, start: Position) -> Position:
            return {"number": int(time.time() / float(self.given["every"]))}

        def read(self, start: Position, end: Position) -> Iterator[tuple[object, ...]]:
            return ((number,) for number in range(start["number"], end["number"]))

A sink is given each batch, and makes it count once by the batch's name and number:

    class Printed(SinkConnector):
        def write(self, rows: DataFrame, batch: Batch) -> None:
            for row in rows.toLocalIterator():
                print(batch.number, row)

A connector travels to other processes as its class and options; it opens what it needs when it is first used there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from headrace.config.names import nearest, shown

from ..errors import QueryError

Position = dict[str, Any]
"""Where a source stands, as JSON."""
Given = Mapping[str, object]
"""Options as a file has them: texts, numbers, truth values, lists and mappings of these."""


class ConnectorError(QueryError):
    """A connector cannot do what is asked; the message says which option or value it is, and what to do."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` None with `required` False is an option that may be left out."""

    doc: str
    default: str | None = None
    required: bool = False
    choices: tuple[str, ...] = ()
    is_list: bool = False


class Connector:
    """What sources and sinks share: options, checked when the pipeline is read."""

    options: ClassVar[Mapping[str, Option]] = {}
    paths: ClassVar[tuple[str, ...]] = ()
    """Options that are paths; relative ones start beside the pipeline's file."""
    takes_others: ClassVar[bool] = False
    """Whether options that are not in the table are somebody else's to judge, as Spark's."""

    def __init__(self, given: Given) -> None:
        self.given: Given = given
        self._require_known()

    def text(self, name: str) -> str:
        """An option as text; its default where it was left out."""
        value = self.given.get(name, self.options[name].default)
        return "" if value is None else _text(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """An option that is a list."""
        value = self.given.get(name)
        if value is None:
            default = self.options[name].default
            return (default,) if default else ()
        return tuple(_text(item) for item in value) if isinstance(value, list) else (_text(value),)

    def seconds(self, name: str) -> float:
        """An option that is a number of seconds."""
        try:
            found = float(self.text(name))
        except ValueError:
            found = -1.0
        if not 0 < found < 1e9:
            raise ConnectorError(f"'{name}' must be a number of seconds, not '{shown(self.text(name))}'", name)
        return found

    def number(self, name: str) -> int:
        """An option that is a whole number above 0."""
        text = self.text(name)
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 40:
            raise ConnectorError(f"'{name}' must be a whole number above 0, not '{shown(text)}'", name)
        return int(text)

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        text = self.text(name)
        if text not in ("true", "false"):
            raise ConnectorError(f"'{name}' must be true or false, not '{shown(text)}'", name)
        return text == "true"

    def _require_known(self) -> None:
        for name in self.given:
            if name not in self.options and not self.takes_others:
                raise ConnectorError(f"there is no option '{shown(name)}'{nearest(name, list(self.options))}", name)
        for name, option in self.options.items():
            if option.required and name not in self.given:
                raise ConnectorError(f"it needs '{name}': {option.doc}")
            if option.choices and name in self.given and self.text(name) not in option.choices:
                text = shown(self.text(name))
                raise ConnectorError(
                    f"'{name}' must be one of {', '.join(option.choices)}, not '{text}'{nearest(text, option.choices)}",
                    name,
                )
            if isinstance(self.given.get(name), list) and not option.is_list:
                raise ConnectorError(f"'{name}' must be a single value, not a list", name)


class SourceConnector(Connector):
    """Where rows come from."""

    poll_seconds: ClassVar[float] = 1.0
    """How often `latest` is asked while there is nothing new."""

    def schema(self) -> str:
        """The columns, as Spark's DDL."""
        raise NotImplementedError

    def initial(self) -> Position:
        """The position before all rows."""
        raise NotImplementedError

    def latest(self, start: Position) -> Position:
        """Where a batch that begins at `start` may end; `start` itself where there is nothing new."""
        raise NotImplementedError

    def read(self, start: Position, end: Position) -> Iterator[tuple[object, ...]]:
        """The rows from one position to another, as values by column: the same ones whenever this is asked."""
        raise NotImplementedError

    def done(self, position: Position) -> None:
        """All rows before a position are written and will not be asked for again. Called now and then, maybe again."""

    def close(self) -> None:
        """Give back what was opened."""

    def frame(self, spark: Any) -> Any:
        """The streaming DataFrame; sources that Spark has itself return theirs."""
        from .streaming import frame_of

        return frame_of(spark, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of a query. One that is cut off is run again, with the same number and the same rows."""

    query: str
    """The same for all batches of a query and a sink, and for nothing else; a new checkpoint has another one."""
    number: int


class SinkConnector(Connector):
    """Where rows go."""

    def check(self, columns: list[str]) -> None:
        """ConnectorError where rows of these columns cannot be written; asked before the query starts."""

    def write(self, rows: Any, batch: Batch) -> None:
        """Write a batch. When this returns it is written for good; when it raises, the batch comes again."""
        raise NotImplementedError


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


KINDS: Final = {"source": SourceConnector, "sink": SinkConnector}
