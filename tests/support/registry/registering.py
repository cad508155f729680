"""Registering without HTTP."""

from headrace.registry import decisions
from headrace.registry.parsing import Posted
from headrace.registry.service import Registry
from headrace.schema_log.records import Proposal
from headrace.schema_log.state import RegistryState, Version


async def register(registry: Registry, subject: str, posted: Posted) -> Version:
    """The version that a schema has or gets."""

    def decide(state: RegistryState) -> tuple[Version | None, Proposal | None]:
        found = decisions.register(state, registry.parser, subject, posted, normalize=False)
        return (None, found) if isinstance(found, Proposal) else (found, None)

    known, outcome = await registry.change(subject, decide)
    entry = known if outcome is None else outcome.version
    assert entry is not None
    return entry
