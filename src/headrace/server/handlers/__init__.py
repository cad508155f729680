"""One module per API family, and here the table of them all."""

from . import api_versions, describe, metadata, topics

HANDLERS = {**api_versions.HANDLERS, **describe.HANDLERS, **metadata.HANDLERS, **topics.HANDLERS}
