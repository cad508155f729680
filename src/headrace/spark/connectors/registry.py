"""Connectors by name. A pipeline knows none of them: it asks here.

Names are those of this package, those that installed packages register under the entry point groups
`headrace.sources` and `headrace.sinks`, and references to a class: `file.py:Class` beside the pipeline's file,
`package.module:Class` as installed.
"""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

from headrace.config.names import nearest, shown

from .base import KINDS, Connector, ConnectorError

_PACKAGE: Final = __name__.rpartition(".")[0]
_OWN: Final[dict[str, dict[str, str]]] = {
    "source": {
        "files": ".files:Files",
        "http": ".http:HttpSource",
        "postgres": ".postgres.source:PostgresSource",
        "spark": ".spark_format:SparkSource",
    },
    "sink": {
        "http": ".http:HttpSink",
        "postgres": ".postgres.sink:PostgresSink",
        "spark": ".spark_format:SparkSink",
    },
}
Load = Callable[[str], Any]


def connector_class(kind: str, name: str, load: Load) -> type[Connector]:
    """The class of a `source` or a `sink`; `load` gives what `file.py:Class` or `module:Class` refers to.

    ConnectorError where there is none, or its package is not installed.
    """
    found = load(name) if ":" in name else _registered(kind, name)
    if not isinstance(found, type) or not issubclass(found, KINDS[kind]):
        raise ConnectorError(f"'{shown(name)}' is not a subclass of {KINDS[kind].__name__}")
    return found


def _registered(kind: str, name: str) -> Any:
    own = _OWN[kind]
    if name in own:
        module, _, attribute = own[name].partition(":")
        return getattr(importlib.import_module(module, _PACKAGE), attribute)
    others = {point.name: point for point in entry_points(group=f"headrace.{kind}s")}
    if name in others:
        return others[name].load()
    known = sorted({*own, *others})
    raise ConnectorError(
        f"there is no connector '{shown(name)}' for a {kind}{nearest(name, known)}; there are {', '.join(known)}, "
        "and a class of yours by file.py:Class or module:Class"
    )
