"""Where to connect and as whom: options of every command that connects, files, the environment and profiles.

What comes first counts, setting by setting:

1. `-b` and `-X`
2. the client file of `-F`
3. the profile of `--profile`
4. the client file of `HEADRACE_CONFIG`
5. `HEADRACE_BOOTSTRAP`, `HEADRACE_SASL_USERNAME`, ...
6. the profile in use: that of `HEADRACE_PROFILE`, or the default

The profile in use (6) is a cluster as a whole: where anything before it names brokers it does not count, so that its
password never goes to others.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.client.properties import (
    BOOTSTRAP,
    REGISTRY_URL,
    BadProperty,
    Located,
    broker_settings,
    is_secret,
    parse_client_file,
)

from .console import bad_input
from .options import DEFAULT_BOOTSTRAP, bootstrap_list, pairs
from .profiles import Profiles, warn_if_readable

ClientFile = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        "-F",
        metavar="FILE",
        help="Client settings, as Kafka's tools and kcat have them; else HEADRACE_CONFIG.",
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="A profile of `headrace profile`; else HEADRACE_PROFILE."),
]

VARIABLES: Final = {
    "HEADRACE_SECURITY_PROTOCOL": "security.protocol",
    "HEADRACE_SASL_MECHANISM": "sasl.mechanism",
    "HEADRACE_SASL_USERNAME": "sasl.username",
    "HEADRACE_SASL_PASSWORD": "sasl.password",
    "HEADRACE_SSL_CA_LOCATION": "ssl.ca.location",
    "HEADRACE_SSL_CERTIFICATE_LOCATION": "ssl.certificate.location",
    "HEADRACE_SSL_KEY_LOCATION": "ssl.key.location",
    "HEADRACE_REGISTRY": REGISTRY_URL,
}
"""Beside HEADRACE_BOOTSTRAP, HEADRACE_CONFIG and HEADRACE_PROFILE."""
_NOT_SHARED: Final = frozenset(
    {
        "auto.commit.enable",
        "auto.offset.reset",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "transactional.id",
    }
)
"""What a file may hold for an application that shares it, and commands decide for themselves."""
_COMMAND_LINE: Final = "COMMANDLINE"
_ENVIRONMENT: Final = "ENVIRONMENT"
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What a command line says of where to connect, beside -b and -X."""

    client_file: Path | None = None
    profile: str | None = None
    bootstrap_source: str = _COMMAND_LINE
    given: frozenset[str] = frozenset()
    """The parameters that stand on the command line."""


_NOTHING: Final = ConnectionOptions()
_choice: ContextVar[ConnectionOptions] = ContextVar("choice", default=_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """A cluster and how to connect to it."""

    bootstrap: str
    settings: Mapping[str, Located] = field(repr=False)
    """Settings of librdkafka, and of the registry."""

    @property
    def registry(self) -> dict[str, str]:
        """The settings of the registry, by Confluent's names."""
        return {name: one.value for name, one in self.settings.items() if _is_registry(name)}


def was_given(parameter: str) -> bool:
    """Whether a parameter of the command stands on its command line."""
    return parameter in _choice.get().given


def names_a_cluster() -> bool:
    """Whether the command line has a client file or a profile."""
    choice = _choice.get()
    return choice.client_file is not None or choice.profile is not None


def resolve_target(bootstrap: str, properties: list[str] | None) -> ClusterTarget:
    """Where a command connects that was given these options."""
    choice = _choice.get()
    option = {name: Located(value, f"-X {name}") for name, value in pairs(properties, "--property").items()}
    if choice.bootstrap_source == _COMMAND_LINE:
        option = {**option, BOOTSTRAP: Located(bootstrap, "--bootstrap")}
    try:
        layers = [_translated(layer) for layer in (option, *_shared_layers(choice, bootstrap))]
        if not any(BOOTSTRAP in layer for layer in layers):
            layers.append(_translated(_shared(_profile_in_use(choice))))
    except BadProperty as error:
        raise bad_input(error.message) from error
    settings: dict[str, Located] = {}
    for layer in reversed(layers):
        settings |= layer
    where = settings.pop(BOOTSTRAP, Located(DEFAULT_BOOTSTRAP, "the default"))
    return ClusterTarget(bootstrap=bootstrap_list(where.value, where.origin), settings=settings)


def _shared_layers(choice: ConnectionOptions, bootstrap: str) -> Iterator[Mapping[str, Located]]:
    """Between the options and the profile in use."""
    if choice.client_file is not None:
        yield _shared(read_client_file(choice.client_file))
    if choice.profile:
        yield _shared(Profiles().settings(choice.profile))
    variable = os.environ.get("HEADRACE_CONFIG")
    if variable and choice.client_file is None:
        yield _shared(read_client_file(Path(variable).expanduser()))
    environment = {
        setting: Located(text, name) for name, setting in VARIABLES.items() if (text := os.environ.get(name))
    }
    if choice.bootstrap_source == _ENVIRONMENT:
        environment[BOOTSTRAP] = Located(bootstrap, "HEADRACE_BOOTSTRAP")
    yield environment


def _profile_in_use(choice: ConnectionOptions) -> Mapping[str, Located]:
    if choice.profile is not None:
        return {}
    variable = os.environ.get("HEADRACE_PROFILE")
    if variable == "":
        return {}
    profiles = Profiles()
    name = variable or profiles.default
    return {} if name is None else profiles.settings(name)


def _shared(settings: Mapping[str, Located]) -> Mapping[str, Located]:
    return {name: located for name, located in settings.items() if name not in _NOT_SHARED}


def _translated(layer: Mapping[str, Located]) -> dict[str, Located]:
    """A layer in librdkafka's names: each is one way of saying it, `sasl.jaas.config` or a user and a password."""
    kept = {name: located for name, located in layer.items() if name == BOOTSTRAP or _is_registry(name)}
    return {**broker_settings(layer), **kept}


def _is_registry(name: str) -> bool:
    return name.startswith(("schema.registry.", "basic.auth.", "bearer.auth."))


def read_client_file(path: Path) -> dict[str, Located]:
    """The settings in a client file."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode()
    except OSError as error:
        raise bad_input(f"client file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise bad_input(f"client file {path} is not text: {error}") from error
    try:
        found = parse_client_file(text, str(path))
    except BadProperty as error:
        raise bad_input(error.message) from error
    if any(is_secret(name) for name in found):
        warn_if_readable(path)
    return found


def add_client_options(app: typer.Typer) -> None:
    """Give `-F` and `--profile` to every command that has `-X`: what connects, connects in the same way."""
    for command in app.registered_commands:
        if command.callback is not None and "properties" in inspect.signature(command.callback).parameters:
            command.callback = _with_client_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_client_options(group.typer_instance)


def _with_client_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(callback, eval_str=True)
    if "client_file" in signature.parameters:
        return callback

    @functools.wraps(callback)
    def connecting(*, ctx: typer.Context, client_file: Path | None, profile: str | None, **arguments: Any) -> Any:
        sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in arguments}
        token = _choice.set(
            ConnectionOptions(
                client_file=client_file,
                profile=profile,
                bootstrap_source=sources.get("bootstrap", ""),
                given=frozenset(name for name, source in sources.items() if source == _COMMAND_LINE),
            )
        )
        try:
            return callback(**arguments)
        finally:
            _choice.reset(token)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in signature.parameters.values()]
    place = 1 + next(number for number, one in enumerate(parameters) if one.name == "properties")
    parameters[place:place] = [
        inspect.Parameter("client_file", keyword, default=None, annotation=ClientFile),
        inspect.Parameter("profile", keyword, default=None, annotation=ProfileName),
    ]
    parameters.insert(0, inspect.Parameter("ctx", keyword, annotation=typer.Context))
    connecting.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    connecting.__annotations__ = {one.name: one.annotation for one in parameters}
    del connecting.__wrapped__
    return connecting
