"""The options that say where a schema registry is, by the names that Confluent's clients have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.config.names import shown

from .registry import RegistrySettings, registry_urls

_PREFIX: Final = "schema.registry."
_CREDENTIALS: Final = ("USER_INFO", "URL")

_SETTINGS: Final = (
    "basic.auth.user.info",
    "basic.auth.credentials.source",
    "bearer.auth.token",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "timeout.ms",
)
_PLAIN: Final = ("basic.auth.user.info", "basic.auth.credentials.source", "bearer.auth.token")
"""Settings that clients also take without the prefix."""


class BadRegistryOption(ValueError):
    """An option that does not say where a registry is, or how to connect."""


REGISTRY_OPTIONS: Final = (f"{_PREFIX}url", *(_PREFIX + name for name in _SETTINGS), *_PLAIN)


def registry_settings(given: Mapping[str, str]) -> RegistrySettings | None:
    """The registry that the options name, whose names are in lower case; None if there is none."""
    text = given.get(f"{_PREFIX}url", "").strip()
    settings = {name: _setting(given, name) for name in _SETTINGS}
    if not text:
        for name in REGISTRY_OPTIONS:
            if given.get(name, "").strip():
                raise BadRegistryOption(f"{name} has no use without {_PREFIX}url; set both, or none")
        return None
    try:
        urls = registry_urls(text)
    except ValueError as error:
        raise BadRegistryOption(f"{_PREFIX}url={shown(text)} is not {error}") from None
    _check_source(settings["basic.auth.credentials.source"], settings["basic.auth.user.info"])
    return RegistrySettings(
        urls=tuple(urls),
        user_info=settings["basic.auth.user.info"],
        token=settings["bearer.auth.token"],
        ca_location=_file(settings, "ssl.ca.location"),
        certificate_location=_file(settings, "ssl.certificate.location"),
        key_location=_file(settings, "ssl.key.location"),
        seconds=_seconds(settings["timeout.ms"]),
    )


def _setting(given: Mapping[str, str], name: str) -> str:
    found = given.get(_PREFIX + name, "").strip()
    return found or (given.get(name, "").strip() if name in _PLAIN else "")


def _check_source(source: str, user_info: str) -> None:
    if source and source.upper() not in _CREDENTIALS:
        raise BadRegistryOption(
            f"basic.auth.credentials.source={shown(source)} is not known; set {' or '.join(_CREDENTIALS)}"
        )
    if source.upper() == "USER_INFO" and not user_info:
        raise BadRegistryOption("basic.auth.credentials.source=USER_INFO needs basic.auth.user.info=<user>:<password>")


def _file(settings: Mapping[str, str], name: str) -> str:
    place = settings[name]
    if place and not Path(place).is_file():
        raise BadRegistryOption(f"{_PREFIX}{name}: there is no file '{place}'")
    return place


def _seconds(text: str) -> float:
    if not text:
        return RegistrySettings(urls=()).seconds
    if not text.isdecimal() or not int(text):
        raise BadRegistryOption(f"{_PREFIX}timeout.ms={shown(text)} must be a number of milliseconds, such as 60000")
    return int(text) / 1000
