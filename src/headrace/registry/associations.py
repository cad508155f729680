"""Which subjects belong to which resources: decisions about it, as functions of the state."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.schema_log.names import normalized
from headrace.schema_log.records import Associate, Dissociate, Json, Proposal
from headrace.schema_log.state import RegistryState, resource_key, subject_key

from .decisions import proposal
from .errors import RegistryError

_RESOURCE: Final = ("resourceName", "resourceNamespace", "resourceId")
_LIFECYCLES: Final = ("STRONG", "WEAK")
MOST_LINKS: Final = 100


def _invalid(name: str, reason: str) -> RegistryError:
    return RegistryError(422, 42212, f"The association specified an invalid value for property: '{name}', {reason}")


def requested(body: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The resource's id and the links that a request asks for; RegistryError where something is missing."""
    resource: dict[str, Any] = {"resourceType": body.get("resourceType") or "topic"}
    for name in _RESOURCE:
        if not isinstance(body.get(name), str) or not body[name]:
            raise _invalid(name, "it must be given")
        resource[name] = body[name]
    wanted = body.get("associations")
    if not isinstance(wanted, list) or not 0 < len(wanted) <= MOST_LINKS:
        raise _invalid("associations", f"1 to {MOST_LINKS} must be given")
    return str(resource["resourceId"]), [resource | _link(each) for each in wanted]


def _link(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("subject"), str) or not value["subject"]:
        raise _invalid("subject", "it must be given")
    lifecycle = value.get("lifecycle") or "WEAK"
    if lifecycle not in _LIFECYCLES:
        raise _invalid("lifecycle", f"it is one of {', '.join(_LIFECYCLES)}")
    kind = value.get("associationType") or "value"
    if not isinstance(kind, str):
        raise _invalid("associationType", "it is a text")
    frozen = bool(value.get("frozen", False))
    return {"subject": value["subject"], "associationType": kind, "lifecycle": lifecycle, "frozen": frozen}


def associate(state: RegistryState, resource: str, links: Sequence[Json]) -> Proposal | None:
    """A proposal to link; None where everything is linked so already."""
    known = state.associations.get(resource, {})
    for link in links:
        kind, subject = link["associationType"], link["subject"]
        if kind in known and known[kind] != link:
            message = f"An association of type '{kind}' already exists for resource '{resource}'"
            raise RegistryError(409, 40903, message)
        if not state.versions(normalized(subject)):
            message = f"No active (non-deleted) version exists for subject '{subject}'"
            raise RegistryError(409, 40907, message)
    if all(link["associationType"] in known for link in links):
        return None
    reads = [resource_key(resource), *(subject_key(normalized(link["subject"])) for link in links)]
    return proposal(state, reads, Associate(resource=resource, links=tuple(links)))


def dissociate(state: RegistryState, resource: str, kinds: Sequence[str]) -> Proposal | None:
    """A proposal to unlink; None where nothing is linked."""
    known = state.associations.get(resource, {})
    if not known or (kinds and not known.keys() & set(kinds)):
        return None
    return proposal(state, [resource_key(resource)], Dissociate(resource=resource, kinds=tuple(kinds)))


def found(state: RegistryState, namespace: str, name: str, resource_type: str, kinds: Sequence[str]) -> list[Json]:
    """The links of resources of a name; `-` stands for any namespace."""
    return [
        link
        for links in state.associations.values()
        for link in links.values()
        if link["resourceName"] == name
        and namespace in ("-", link["resourceNamespace"])
        and (not resource_type or link["resourceType"] == resource_type)
        and (not kinds or link["associationType"] in kinds)
    ]
