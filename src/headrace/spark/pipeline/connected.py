"""Reading sources and sinks that are connectors: `connector: NAME` and the connector's own options."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from ..connectors.base import Connector, ConnectorError, SinkConnector, SourceConnector
from ..connectors.registry import connector_class
from .document import DocumentNode, Section
from .expectations import read_expectations
from .functions import FunctionError, load_function
from .model import Connected, Step, ToConnector
from .values import read_watermark

KEY: Final = "connector"


def read_connected_source(name: str, section: Section, directory: Path) -> Step | None:
    """A source with a connector; None with what is wrong noted."""
    made = _connector(section, "source", directory, ("watermark", "expect"))
    watermark, expect = read_watermark(section), read_expectations(section, directory)
    if not isinstance(made, SourceConnector):
        return None
    work = Connected(kind=section.text(KEY) or "", connector=made)
    return Step(name=name, position=section.position, work=work, inputs=(), watermark=watermark, expect=expect)


def read_connected_sink(section: Section, directory: Path, but: Collection[str]) -> ToConnector | None:
    """The output of a sink with a connector; None with what is wrong noted."""
    made = _connector(section, "sink", directory, but)
    return ToConnector(kind=section.text(KEY) or "", connector=made) if isinstance(made, SinkConnector) else None


def _connector(section: Section, kind: str, directory: Path, but: Collection[str]) -> Connector | None:
    def load(reference: str) -> object:
        return load_function(reference, directory)

    given = {
        option: plain_value(section.node(option)) for option in section.names() if option != KEY and option not in but
    }
    try:
        found = connector_class(kind, section.text(KEY) or "", load)
    except (ConnectorError, FunctionError, ImportError) as error:
        section.wrong(KEY, str(error))
        return None
    try:
        return found(_beside(given, found, directory))
    except ConnectorError as error:
        section.wrong(error.option or KEY, str(error))
        return None


def _beside(given: dict[str, object], kind: type[Connector], directory: Path) -> dict[str, object]:
    """Options with paths of files beside the pipeline's made whole."""
    home = directory.resolve()
    return {
        name: str(home / value) if name in kind.paths and isinstance(value, str) and "://" not in value else value
        for name, value in given.items()
    }


def plain_value(node: DocumentNode | None) -> object:
    """A value without the positions of its parts."""
    if node is None:
        return None
    if isinstance(node.value, list):
        return [plain_value(item) for item in node.value]
    if isinstance(node.value, dict):
        return {name: plain_value(item) for name, item in node.value.items()}
    return node.value
