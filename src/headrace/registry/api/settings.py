"""Compatibility levels and modes, everywhere or for one subject."""

from typing import Any, Final

import msgspec
from msgspec import Struct, field

from headrace.schema_log.names import EVERYTHING
from headrace.schema_log.state import RegistryState
from headrace.web.messages import Answer, Request

from .. import answers, decisions, errors
from .bodies import ConfigBody, MetadataBody, ModeBody, RuleSetBody, metadata_of, read_body, rule_set_of
from .common import Flag, Force, Handlers, Row, answered, is_set, scope_of
from .rights import Action, require

_LEVEL: Final = "compatibilityLevel"


class Fallback(Struct, frozen=True):
    """Whether to show what holds where nothing is set."""

    default_to_global: Flag = field(default="false", name="defaultToGlobal")


class Settings(Handlers):
    """Compatibility levels and modes, everywhere or for one subject."""

    def table(self) -> list[Row]:
        return [
            ("GET", "/config", "Settings that hold everywhere.", self.get_config, Fallback, None),
            ("PUT", "/config", "Change settings that hold everywhere.", self.put_config, None, ConfigBody),
            ("DELETE", "/config", "Return to the default settings.", self.delete_config, None, None),
            ("GET", "/config/{subject}", "A subject's settings.", self.get_config, Fallback, None),
            ("PUT", "/config/{subject}", "Change a subject's settings.", self.put_config, None, ConfigBody),
            ("DELETE", "/config/{subject}", "Remove a subject's settings.", self.delete_config, None, None),
            ("GET", "/mode", "The mode that holds everywhere.", self.get_mode, Fallback, None),
            ("PUT", "/mode", "Change the mode that holds everywhere.", self.put_mode, Force, ModeBody),
            ("DELETE", "/mode", "Return to the default mode.", self.delete_mode, None, None),
            ("GET", "/mode/{subject}", "A subject's mode.", self.get_mode, Fallback, None),
            ("PUT", "/mode/{subject}", "Change a subject's mode.", self.put_mode, Force, ModeBody),
            ("DELETE", "/mode/{subject}", "Remove a subject's mode.", self.delete_mode, None, None),
        ]

    async def get_config(self, request: Request, query: Fallback) -> Answer:
        scope, default = scope_of(request), is_set(query.default_to_global)

        def found(state: RegistryState) -> dict[str, Any]:
            if default or scope == EVERYTHING:
                return decisions.config_in_scope(state, scope)
            if scope not in state.configs:
                raise errors.config_not_set(scope)
            return answers.config_read(state.configs[scope])

        return answered(await self.registry.read(found))

    async def put_config(self, request: Request) -> Answer:
        scope, update = scope_of(request), _update_of(await read_body(request, ConfigBody))
        config, _ = await self.registry.change(
            f"config {scope}", lambda state: decisions.set_config(state, scope, update)
        )
        return answered(answers.config_written(config))

    async def delete_config(self, request: Request) -> Answer:
        scope = scope_of(request)
        config, _ = await self.registry.change(f"config {scope}", lambda state: decisions.delete_config(state, scope))
        return answered(answers.config_read(config))

    async def get_mode(self, request: Request, query: Fallback) -> Answer:
        scope, default = scope_of(request), is_set(query.default_to_global)

        def found(state: RegistryState) -> str:
            if not default and scope != EVERYTHING and scope not in state.modes:
                raise errors.mode_not_set(scope)
            return decisions.mode_in_scope(state, scope) if default else state.modes.get(scope, "READWRITE")

        return answered({"mode": await self.registry.read(found)})

    async def put_mode(self, request: Request, query: Force) -> Answer:
        scope, force = scope_of(request), is_set(query.force)
        mode = (await read_body(request, ModeBody)).mode.upper()
        if mode == "IMPORT":
            await require(self.rights, request, Action.CONFIGURE, [EVERYTHING])
        await self.registry.change(
            f"mode {scope}", lambda state: (None, decisions.set_mode(state, scope, mode, force=force))
        )
        return answered({"mode": mode})

    async def delete_mode(self, request: Request) -> Answer:
        scope = scope_of(request)
        mode, _ = await self.registry.change(f"mode {scope}", lambda state: decisions.delete_mode(state, scope))
        return answered({"mode": mode})


def _update_of(body: ConfigBody) -> dict[str, Any]:
    """The settings that a request names, as they are kept."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    found = {_CAMEL[name]: _kept(value) for name, value in given.items() if value is not msgspec.UNSET}
    level = found.pop("compatibility", found.get(_LEVEL))
    if level is not None:
        found[_LEVEL] = None if level == b"null" else bytes(level).decode().strip('"').upper()
    policy = found.get("compatibilityPolicy")
    return found | {"compatibilityPolicy": policy.upper()} if policy else found


_CAMEL: Final = {field.name: field.encode_name for field in msgspec.structs.fields(ConfigBody)}


def _kept(value: Any) -> Any:
    if isinstance(value, MetadataBody):
        return metadata_of(value)
    return rule_set_of(value) if isinstance(value, RuleSetBody) else value
