"""Columns as values that a schema registry knows: Avro, JSON Schema and Protobuf, framed with the id of their schema.

`encoder_for` is called where a query is planned: the schema is found or made, registered or looked up, and the columns
are checked against it. The encoder is pickled to the executors.
"""

from .. import types as t
from .encoder import ValueEncoder
from .options import ENCODING_OPTIONS, EncodingOptions, read_encoding

__all__ = ["ENCODING_OPTIONS", "EncodingOptions", "ValueEncoder", "encoder_for", "read_encoding"]


def encoder_for(options: EncodingOptions, value: t.DataType) -> ValueEncoder:
    """The encoder of a column; OptionError where the schema cannot be had or the column does not fit it."""
    from .schemas import agreed

    return ValueEncoder(options, agreed(options, value))
