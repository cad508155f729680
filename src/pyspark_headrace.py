"""Spark finds this module by its name and registers the source in it, so that `format("headrace")` just works."""

from headrace.spark.data_source import HeadraceSource


class DefaultSource(HeadraceSource):
    """What Spark registers; its name is `headrace`."""
