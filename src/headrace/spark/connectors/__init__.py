"""Sources and sinks of pipelines beside topics: by name, or a Python class of yours. See docs/connectors.md."""

from .base import Batch, ConnectorError, Option, SinkConnector, SourceConnector

__all__ = ["Batch", "ConnectorError", "Option", "SinkConnector", "SourceConnector"]
