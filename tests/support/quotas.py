"""Quotas set as an operator sets them."""

from collections.abc import Mapping

from headrace.client.core.quotas import Entity
from headrace.ops.quotas import QuotaOperations
from headrace.testing import Broker


def set_quotas(broker: Broker, entity: Entity, **quotas: float | None) -> None:
    """Set an entity's quotas; None removes one."""
    values: Mapping[str, float | None] = quotas
    with QuotaOperations(broker.bootstrap) as operations:
        operations.alter_quotas(entity, values)
