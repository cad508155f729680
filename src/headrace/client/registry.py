"""A client of schema registries with Confluent's API: schemas by id, versions of subjects, registering.

Its calls block. What a registry says of a schema by its id never changes, so each is asked for once. A registry that
does not answer, or not yet, is asked again, at its other addresses too, until `settings.seconds` are over.
"""

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from .errors import REGISTRY_UNREACHABLE, ClientError

LATEST: Final = "latest"
DEFAULT_TYPE: Final = "AVRO"

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_REQUEST_SECONDS: Final = 10.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_UNKNOWN_SECONDS: Final = 10.0
_MOST_UNKNOWN: Final = 10_000
_NOT_FOUND: Final = (40401, 40402, 40403)
_TOO_MANY_REQUESTS: Final = 429
_CONFLICT: Final = 409
_NO_REGISTRY: Final = 0


class RegistryUnreachable(ClientError):
    """No address of a registry answers; it may later."""


class RegistryRefusal(ClientError):
    """The registry said no, or what answers is none; `error_code` is the number it gave, or the status."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message, str(error_code))
        self.error_code = error_code

    @property
    def is_incompatible(self) -> bool:
        """Whether a schema is not compatible with those of its subject."""
        return self.error_code == _CONFLICT


class NotRegistered(ClientError):
    """The registry has no such subject, version or schema."""


class SchemaReference(NamedTuple):
    """A schema that another one names."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as a registry has it: of type AVRO, JSON or PROTOBUF."""

    text: str = field(repr=False)
    type: str = DEFAULT_TYPE
    references: tuple[SchemaReference, ...] = ()
    id: int = -1
    subject: str = ""
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Where a registry is and how to connect."""

    urls: tuple[str, ...]
    user_info: str = field(default="", repr=False)
    """User and password, with a colon between."""
    token: str = field(default="", repr=False)
    ca_location: str = ""
    certificate_location: str = ""
    key_location: str = ""
    seconds: float = 60.0
    """How long to ask a registry that does not answer."""

    @property
    def shown(self) -> str:
        """The addresses, without the passwords that may be in them."""
        return ", ".join(_without_user(url)[0] for url in self.urls)


class SchemaRegistry:
    """One registry, and what it has said."""

    def __init__(
        self,
        settings: RegistrySettings,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._pause = pause
        self._clock = clock
        self._by_id: dict[tuple[int, str], RegisteredSchema] = {}
        self._unknown: dict[tuple[int, str], float] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}
        self._ids: dict[tuple[str, RegisteredSchema, bool], int] = {}
        self._next = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the schema registry at {self._settings.shown}"

    def schema(self, schema_id: int, subject: str = "") -> RegisteredSchema | None:
        """The schema of an id, None if there is none; the subject says which context the id is of."""
        key = (schema_id, subject)
        if key in self._by_id:
            return self._by_id[key]
        if self._clock() < self._unknown.get(key, 0.0):
            return None
        where = f"/schemas/ids/{schema_id}" + (f"?subject={quote(subject, safe='')}" if subject else "")
        try:
            schema = self._by_id[key] = self._schema(self._ask("GET", where), schema_id)
        except NotRegistered:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[key] = self._clock() + _UNKNOWN_SECONDS
            return None
        return schema

    def version(self, subject: str, version: int | str = LATEST) -> RegisteredSchema:
        """A version of a subject; NotRegistered if there is none."""
        if isinstance(version, int) and (subject, version) in self._versions:
            return self._versions[subject, version]
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        found = self._schema(answer, answer.get("id"), subject)
        self._versions[subject, found.version] = found
        return found

    def register(self, subject: str, schema: RegisteredSchema, *, normalize: bool = False) -> int:
        """The id of a schema, which is then the subject's; RegistryRefusal if it is not compatible."""
        return self._id_of(f"/subjects/{quote(subject, safe='')}/versions", schema, normalize)

    def lookup(self, subject: str, schema: RegisteredSchema, *, normalize: bool = False) -> int:
        """The id that a schema has in a subject; NotRegistered if it has none."""
        return self._id_of(f"/subjects/{quote(subject, safe='')}", schema, normalize)

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Every subject, by name; with `deleted` also those that were deleted softly."""
        return [str(one) for one in self._ask_list("GET", f"/subjects?deleted={str(deleted).lower()}")]

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The numbers of a subject's versions; NotRegistered if there is no such subject."""
        where = f"/subjects/{quote(subject, safe='')}/versions?deleted={str(deleted).lower()}"
        return [int(one) for one in self._ask_list("GET", where)]

    def delete(self, subject: str, version: int | str | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a subject or one of its versions, softly or (what was deleted softly) for good; which versions."""
        where = f"/subjects/{quote(subject, safe='')}" + ("" if version is None else f"/versions/{version}")
        found = self._request("DELETE", f"{where}?permanent={str(permanent).lower()}")
        return [int(one) for one in found] if isinstance(found, list) else [int(found)]

    def incompatibilities(self, subject: str, schema: RegisteredSchema, version: int | str | None = None) -> list[str]:
        """Why a schema could not be the next version; with a version, why it is not compatible with that one."""
        where = f"/compatibility/subjects/{quote(subject, safe='')}/versions"
        where += "" if version is None else f"/{version}"
        answer = self._ask("POST", f"{where}?verbose=true", _body(schema))
        if answer.get("is_compatible"):
            return []
        return [str(one) for one in answer.get("messages") or ()] or ["the registry does not say why"]

    def compatibility(self, subject: str | None = None) -> str:
        """The compatibility level of a subject, or that which holds where none is set."""
        where = "/config" if subject is None else f"/config/{quote(subject, safe='')}?defaultToGlobal=true"
        return str(self._ask("GET", where).get("compatibilityLevel", ""))

    def set_compatibility(self, level: str | None, subject: str | None = None) -> str:
        """Set the level of a subject, or the one for all; None takes back what was set. The level that was set."""
        where = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
        if level is None:
            self._request("DELETE", where)
            return self.compatibility(subject)
        return str(self._ask("PUT", where, {"compatibility": level}).get("compatibility", level))

    def call(self, method: str, where: str, body: Any = None) -> Any:
        """The answer to any request of the API; NotRegistered for what is not there, RegistryRefusal for a refusal."""
        return self._request(method, where, body)

    def cluster_id(self) -> str | None:
        """The Kafka cluster that the registry says it belongs to; only ours says so."""
        scope = self._ask("GET", "/v1/metadata/id").get("scope")
        clusters = scope.get("clusters") if isinstance(scope, dict) else None
        return clusters.get("kafka-cluster") if isinstance(clusters, dict) else None

    def _id_of(self, where: str, schema: RegisteredSchema, normalize: bool) -> int:
        key = (where, schema, normalize)
        if key not in self._ids:
            answer = self._ask("POST", f"{where}?normalize={str(normalize).lower()}", _body(schema))
            self._ids[key] = self._id(answer)
        return self._ids[key]

    def _schema(self, answer: Mapping[str, Any], schema_id: Any, subject: str = "") -> RegisteredSchema:
        try:
            references = tuple(
                SchemaReference(str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in answer.get("references") or ()
            )
            return RegisteredSchema(
                text=str(answer["schema"]),
                type=str(answer.get("schemaType") or DEFAULT_TYPE),
                references=references,
                id=int(schema_id),
                subject=subject,
                version=int(answer.get("version", -1)),
            )
        except (KeyError, TypeError, ValueError):
            self._is_none("gives schemas without their text or number")

    def _id(self, answer: Mapping[str, Any]) -> int:
        found = answer.get("id")
        return found if isinstance(found, int) else self._is_none("gives no id")

    def _is_none(self, what: str) -> NoReturn:
        raise RegistryRefusal(f"{self.name} {what}: is it one?", _NO_REGISTRY)

    def _ask(self, method: str, where: str, body: Any = None) -> Mapping[str, Any]:
        found = self._request(method, where, body)
        return found if isinstance(found, dict) else self._is_none("answers with what is not an object")

    def _ask_list(self, method: str, where: str) -> list[Any]:
        found = self._request(method, where)
        return found if isinstance(found, list) else self._is_none("answers with what is not a list")

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, asked until there is one or the time is over."""
        deadline, pause = self._clock() + self._settings.seconds, _FIRST_PAUSE
        while True:
            try:
                return self._answer(method, self._settings.urls[self._next], path, body)
            except _TryAgain as error:
                self._next = (self._next + 1) % len(self._settings.urls)
                if self._clock() + pause >= deadline:
                    raise RegistryUnreachable(f"{self.name} does not answer: {error}", REGISTRY_UNREACHABLE) from None
            self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _answer(self, method: str, url: str, path: str, body: Any) -> Any:
        base, user = _without_user(url)
        headers = {"Accept": _CONTENT, "Content-Type": _CONTENT, **self._authorization(user)}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base.rstrip("/") + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(
                request, timeout=min(_REQUEST_SECONDS, self._settings.seconds), context=self._context(base)
            ) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, HTTPException) as error:
            raise _TryAgain(str(getattr(error, "reason", "")) or str(error) or type(error).__name__) from error
        except ValueError:
            self._is_none("answers with what is not JSON")
        return answer

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        code, message = _error_body(error)
        if error.code >= 500 or error.code == _TOO_MANY_REQUESTS:
            raise _TryAgain(f"{error.code} {message}") from error
        if code in _NOT_FOUND:
            raise NotRegistered(message, str(code)) from error
        if code is None:
            hint = "; are the user and the password right?" if error.code in (401, 403) else "; is it one?"
            raise RegistryRefusal(f"{self.name} answers {error.code} {error.reason}{hint}", error.code) from error
        raise RegistryRefusal(f"{self.name}: {message}", code) from error

    def _authorization(self, user: str) -> dict[str, str]:
        if self._settings.token:
            return {"Authorization": f"Bearer {self._settings.token}"}
        user = self._settings.user_info or user
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}

    def _context(self, url: str) -> ssl.SSLContext | None:
        if not url.lower().startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self._settings.ca_location or None)
            if self._settings.certificate_location:
                context.load_cert_chain(self._settings.certificate_location, self._settings.key_location or None)
        except (OSError, ssl.SSLError) as error:
            raise ClientError(f"the certificates for {self.name} cannot be read: {error}", "INVALID_CONFIG") from error
        return context


class _TryAgain(Exception):
    """An address that may answer later."""


def _without_user(url: str) -> tuple[str, str]:
    """A URL without the user and the password in it, and these."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(user)


def _error_body(error: urllib.error.HTTPError) -> tuple[int | None, str]:
    """The registry's own code and sentence; no code where it is not a registry that answers."""
    try:
        answer = json.loads(error.read())
        return int(answer["error_code"]), str(answer.get("message", ""))
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None, str(error.reason)


def _body(schema: RegisteredSchema) -> dict[str, Any]:
    references = [reference._asdict() for reference in schema.references]
    body: dict[str, Any] = {"schema": schema.text, "schemaType": schema.type}
    return {**body, "references": references} if references else body


_shared: dict[RegistrySettings, SchemaRegistry] = {}


def shared_registry(settings: RegistrySettings) -> SchemaRegistry:
    """The registry, as this process knows it: an executor's worker outlives its tasks."""
    return _shared.setdefault(settings, SchemaRegistry(settings))


def registry_urls(text: str) -> Sequence[str]:
    """Addresses in a list with commas; ValueError for what is none."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls or not all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in urls):
        raise ValueError("the URL of a schema registry, such as http://127.0.0.1:8080")
    return urls
