"""Which subjects belong to which resources."""

from urllib.parse import parse_qsl

from headrace.schema_log.names import normalized
from headrace.schema_log.records import Json
from headrace.schema_log.state import RegistryState
from headrace.web.messages import Answer, Request
from headrace.web.routes import Query
from headrace.web.shapes import Text

from .. import associations, decisions
from .common import NO, OPEN, PAGE, Handlers, Row, answered, page, read_body


class Associations(Handlers):
    """Which subjects belong to which resources."""

    def table(self) -> list[Row]:
        kind = {"resourceType": Query(Text(most=100), ""), "associationType": Query(Text(most=100), "")}
        named, by_id = "/associations/resources/{namespace}/{name}", "/associations/resources/{id}"
        return [
            ("POST", "/associations", "Say which subjects belong to a resource.", self.create_associations, {}, OPEN),
            ("GET", named, "Subjects of a resource.", self.list_associations, {**PAGE, **kind}, None),
            ("DELETE", by_id, "Forget which subjects belong to a resource.", self.delete_associations,
             {**kind, "cascadeLifecycle": NO}, None),
        ]  # fmt: skip

    async def create_associations(self, request: Request) -> Answer:
        body = await read_body(request)
        resource, links = associations.requested(body)
        for wanted in body["associations"]:
            if isinstance(wanted.get("schema"), dict):
                posted, normalize = decisions.posted_of(wanted["schema"]), bool(wanted.get("normalize"))
                await self.registered(normalized(wanted["subject"]), posted, normalize=normalize)
        await self.registry.change(
            f"resource {resource}", lambda state: (None, associations.associate(state, resource, links))
        )
        shown = [{n: link[n] for n in ("subject", "associationType", "lifecycle", "frozen")} for link in links]
        about = {n: links[0][n] for n in ("resourceName", "resourceNamespace", "resourceId", "resourceType")}
        return answered({**about, "associations": shown})

    async def list_associations(self, request: Request) -> Answer:
        namespace, name, query = request.params["namespace"], request.params["name"], request.query
        kinds = _kinds(request)

        def listed(state: RegistryState) -> list[Json]:
            return page(associations.found(state, namespace, name, query["resourceType"], kinds), query)

        return answered(await self.registry.read(listed))

    async def delete_associations(self, request: Request) -> Answer:
        resource, kinds = request.params["id"], _kinds(request)
        await self.registry.change(
            f"resource {resource}", lambda state: (None, associations.dissociate(state, resource, kinds))
        )
        return Answer(204)


def _kinds(request: Request) -> list[str]:
    """The parameter may come several times."""
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"))
    return [value for name, value in pairs if name == "associationType"]
