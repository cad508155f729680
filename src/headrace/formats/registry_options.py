"""The options that say where a schema registry is, for formats."""

from collections.abc import Mapping

from headrace.client import registry_options
from headrace.client.registry import RegistrySettings

from .errors import OptionError

REGISTRY_OPTIONS = registry_options.REGISTRY_OPTIONS


def registry_settings(given: Mapping[str, str]) -> RegistrySettings | None:
    """The registry that the options name, whose names are in lower case; None if there is none."""
    try:
        return registry_options.registry_settings(given)
    except registry_options.BadRegistryOption as error:
        raise OptionError(str(error)) from None
