"""Values of records as columns: text, JSON, Avro and Protobuf.

`decoder_for` reads the options of a source where a query is planned; the decoder is pickled to the executors, where it
turns batches of records into batches with decoded values. Schemas are compiled, and libraries loaded, when they are
first used.
"""

from collections.abc import Mapping
from dataclasses import replace

from .decoder import ValueDecoder
from .errors import OptionError
from .options import OPTION_NAMES, read_options

__all__ = ["OPTION_NAMES", "OptionError", "ValueDecoder", "check_options", "decoder_for"]


def decoder_for(options: Mapping[str, str], client: Mapping[str, str] | None = None) -> ValueDecoder | None:
    """The decoder that a source's options ask for, or None if its records stay as they are.

    Options that are not among OPTION_NAMES are left alone, but for `includeHeaders` and, where `client` does not have
    them, the client's settings among `kafka.*`: what writes dead letters connects with these. Raises OptionError
    where the options, or the schema, cannot be meant. A schema that is a subject's is fetched from the registry.
    """
    read = read_options(options)
    if client is not None:
        read = replace(read, client=dict(client))
    if not read.decodes:
        return None
    if read.lacks_schema:
        from .subjects import with_subjects_schema

        read = with_subjects_schema(read)
    decoder = ValueDecoder(read)
    decoder.check()
    return decoder


def check_options(options: Mapping[str, str]) -> None:
    """Raise OptionError where the options, or a schema that they give, cannot be meant; nobody is asked for one."""
    read = read_options(options)
    if read.decodes and not read.lacks_schema:
        ValueDecoder(read).check()
