"""Registering without HTTP."""

from headrace.registry import judge
from headrace.registry.parsing import Posted
from headrace.registry.records import Proposal
from headrace.registry.service import Registry
from headrace.registry.state import State, Version


async def register(registry: Registry, subject: str, posted: Posted) -> Version:
    """The version that a schema has or gets."""

    def judged(state: State) -> tuple[Version | None, Proposal | None]:
        found = judge.register(state, registry.parser, subject, posted, normalize=False)
        return (None, found) if isinstance(found, Proposal) else (found, None)

    known, outcome = await registry.change(subject, judged)
    entry = known if outcome is None else outcome.version
    assert entry is not None
    return entry
