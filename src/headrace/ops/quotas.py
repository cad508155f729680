"""Client quotas: described, set and removed. librdkafka has no calls for them."""

from collections.abc import Iterable, Mapping

from headrace.client.columnar.retry import refused
from headrace.client.core.quotas import (
    Entity,
    EntityQuotas,
    Match,
    alter_quotas_request,
    describe_quotas_request,
    read_altered_quotas,
    read_quotas,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from .operations import Operations


class QuotaOperations(Operations):
    """The quotas of one cluster. Each method raises `ClientError`."""

    def describe_quotas(self, matches: Iterable[Match] = (), *, strict: bool = False) -> list[EntityQuotas]:
        """Entities that fulfil all conditions (when strict: and have no other kinds), or all, and their quotas."""
        answer = self._ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, describe_quotas_request(matches, strict=strict))
        if answer.error_code is not ErrorCode.none:
            raise refused(answer.error_code, "client quotas", answer.error_message)
        return read_quotas(answer)

    def alter_quotas(self, entity: Entity, quotas: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Set quotas of an entity, and remove those that are None; its others stay as they are."""
        request = alter_quotas_request([(entity, quotas)], validate_only=validate_only)
        ((_, code, message),) = read_altered_quotas(self._ask(ApiKey.ALTER_CLIENT_QUOTAS, request))
        if code is not ErrorCode.none:
            raise refused(code, f"quotas of {shown_entity(entity)}", message)


def shown_entity(entity: Entity) -> str:
    """An entity as it is told to people: `user 'alice', default client-id`."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} '{name}'" for kind, name in entity.items())
