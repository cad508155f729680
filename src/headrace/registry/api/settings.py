"""Compatibility levels and modes, everywhere or for one subject."""

from typing import Any, Final

from headrace.schema_log.names import EVERYTHING
from headrace.schema_log.state import RegistryState
from headrace.web.messages import Answer, Request

from .. import answers, decisions, errors
from .common import NO, OPEN, Handlers, Row, answered, read_body, scope_of

_CONFIG_FIELDS: Final = (
    "alias",
    "normalize",
    "validateFields",
    "validateRules",
    "compatibilityGroup",
    "compatibilityPolicy",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


class Settings(Handlers):
    """Compatibility levels and modes, everywhere or for one subject."""

    def table(self) -> list[Row]:
        default = {"defaultToGlobal": NO}
        force = {"force": NO}
        return [
            ("GET", "/config", "Settings that hold everywhere.", self.get_config, default, None),
            ("PUT", "/config", "Change settings that hold everywhere.", self.put_config, {}, OPEN),
            ("DELETE", "/config", "Return to the default settings.", self.delete_config, {}, None),
            ("GET", "/config/{subject}", "A subject's settings.", self.get_config, default, None),
            ("PUT", "/config/{subject}", "Change a subject's settings.", self.put_config, {}, OPEN),
            ("DELETE", "/config/{subject}", "Remove a subject's settings.", self.delete_config, {}, None),
            ("GET", "/mode", "The mode that holds everywhere.", self.get_mode, default, None),
            ("PUT", "/mode", "Change the mode that holds everywhere.", self.put_mode, force, OPEN),
            ("DELETE", "/mode", "Return to the default mode.", self.delete_mode, {}, None),
            ("GET", "/mode/{subject}", "A subject's mode.", self.get_mode, default, None),
            ("PUT", "/mode/{subject}", "Change a subject's mode.", self.put_mode, force, OPEN),
            ("DELETE", "/mode/{subject}", "Remove a subject's mode.", self.delete_mode, {}, None),
        ]  # fmt: skip

    async def get_config(self, request: Request) -> Answer:
        scope, default = scope_of(request), request.query["defaultToGlobal"]

        def found(state: RegistryState) -> dict[str, Any]:
            if default or scope == EVERYTHING:
                return decisions.config_in_scope(state, scope)
            if scope not in state.configs:
                raise errors.config_not_set(scope)
            return answers.config_read(state.configs[scope])

        return answered(await self.registry.read(found))

    async def put_config(self, request: Request) -> Answer:
        scope, body = scope_of(request), await read_body(request)
        update: dict[str, Any] = {name: body[name] for name in _CONFIG_FIELDS if name in body}
        level = body.get("compatibility", body.get("compatibilityLevel"))
        if level is not None:
            update["compatibilityLevel"] = level.upper() if isinstance(level, str) else level
        config, _ = await self.registry.change(
            f"config {scope}", lambda state: decisions.set_config(state, scope, update)
        )
        return answered(answers.config_written(config))

    async def delete_config(self, request: Request) -> Answer:
        scope = scope_of(request)
        config, _ = await self.registry.change(f"config {scope}", lambda state: decisions.delete_config(state, scope))
        return answered(answers.config_read(config))

    async def get_mode(self, request: Request) -> Answer:
        scope, default = scope_of(request), request.query["defaultToGlobal"]

        def found(state: RegistryState) -> str:
            if not default and scope != EVERYTHING and scope not in state.modes:
                raise errors.mode_not_set(scope)
            return decisions.mode_in_scope(state, scope) if default else state.modes.get(scope, "READWRITE")

        return answered({"mode": await self.registry.read(found)})

    async def put_mode(self, request: Request) -> Answer:
        scope, body, force = scope_of(request), await read_body(request), request.query["force"]
        given = body.get("mode")
        mode = given.upper() if isinstance(given, str) else str(given)
        await self.registry.change(
            f"mode {scope}", lambda state: (None, decisions.set_mode(state, scope, mode, force=force))
        )
        return answered({"mode": mode})

    async def delete_mode(self, request: Request) -> Answer:
        scope = scope_of(request)
        mode, _ = await self.registry.change(f"mode {scope}", lambda state: decisions.delete_mode(state, scope))
        return answered({"mode": mode})
