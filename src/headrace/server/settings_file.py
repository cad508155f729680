"""The settings file of a running broker: what it says at the start, and when SIGHUP has it read again."""

from collections.abc import Callable

import structlog

from headrace.config import BrokerConfig, ConfigError, Reloaded

Reread = Callable[[], BrokerConfig]
"""The settings as they are in the file now; `ConfigError` with what is wrong with them."""

log = structlog.get_logger(__name__)


def warn_without_effect(config: BrokerConfig) -> None:
    """One line for each kind of settings that were given and do nothing here."""
    for words, names in config.without_effect():
        log.warning(words, settings=", ".join(names))


def reload_settings(reread: Reread | None, apply: Callable[[BrokerConfig], Reloaded]) -> None:
    """Read the file again and log what has changed, what needs a restart, and what was refused.

    A file that cannot be read, or has anything wrong in it, changes nothing.
    """
    if reread is None:
        log.info("settings not reloaded: the broker was started without --config")
        return
    try:
        new = reread()
    except ConfigError as error:
        log.error("settings refused, nothing was changed", reason=str(error))
        return
    reloaded = apply(new)
    log.info("settings reloaded", changed=", ".join(reloaded.changed) or "nothing")
    if reloaded.needs_restart:
        log.warning("settings changed in the file need a restart", settings=", ".join(reloaded.needs_restart))
    if reloaded.overridden:
        log.warning(
            "settings changed in the file do not count: they are set by AlterConfigs, delete them there",
            settings=", ".join(reloaded.overridden),
        )
