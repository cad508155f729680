"""`python -m headrace.cli.reference` prints docs/cli.md: every command as its `--help` describes it."""

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from .main import app

_HEAD: Final = """# Commands

What `headrace COMMAND --help` says, on one page. Written by `make docs`, do not edit.

Results go to standard output, all else to standard error; `--json` answers with one JSON document a line. Exit codes:
0 done, 1 failed, 2 wrong usage, 3 no broker answers, 130 interrupted. `HEADRACE_DEBUG=1` shows where an error happened.

## Where to connect, and as whom

Every command that connects takes the same settings (`gateway` and `pipeline run|check` have options of their own):
those of librdkafka, and those in files for kcat and for Kafka's own tools (`--command-config`; `sasl.jaas.config` is
read for PLAIN and SCRAM). What comes first counts:

1. `-b HOST:PORT` and `-X NAME=VALUE`
2. `-F FILE` (also `--command-config`): a client file, one `name=value` a line
3. `--profile NAME`
4. `HEADRACE_CONFIG`: a client file
5. `HEADRACE_BOOTSTRAP`, `HEADRACE_SECURITY_PROTOCOL`, `HEADRACE_SASL_MECHANISM`, `HEADRACE_SASL_USERNAME`,
   `HEADRACE_SASL_PASSWORD`, `HEADRACE_SSL_CA_LOCATION`, `HEADRACE_SSL_CERTIFICATE_LOCATION`,
   `HEADRACE_SSL_KEY_LOCATION`, `HEADRACE_REGISTRY`
6. the profile in use: that of `HEADRACE_PROFILE`, else the one chosen with `headrace profile use`

The profile in use (6) stands for one cluster: where brokers are named by anything before it, it does not count at all,
so that its password goes to no others; `--profile NAME -b HOST:PORT` says that it may. Profiles are kept in
`~/.config/headrace/config.toml` (`XDG_CONFIG_HOME` moves it), which only its owner can read:

```toml
default = "prod"

[profile.prod]
bootstrap.servers = "b1.example.com:9092,b2.example.com:9092"
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "alice"
sasl.password = "…"
schema.registry.url = "https://registry.example.com"
```

Passwords belong into a file, a profile or the environment. One that is given with `-X` is taken out of what `ps` shows
as soon as the command has started, but may stay in a shell's history.

## Units

Where a setting is a time or a number of bytes, as its name ends (`retention.ms`, `segment.bytes`), a value may have a
unit: `500ms`, `30s`, `5m`, `12h`, `7d`, `2w`; `10KB`, `10MB`, `1GB` are thousands, `10KiB`, `10MiB`, `1GiB` are 1024s.
"""


def render_reference() -> str:
    """The page, in Markdown."""
    commands = list(_commands(typer.main.get_command(app), None, "headrace"))
    index = ["| command | |", "|---|---|"]
    index += [
        f"| [`{ctx.command_path}`](#{ctx.command_path.replace(' ', '-')}) | {_cell(_summary(command))} |"
        for command, ctx in commands
    ]
    return "\n".join(
        [_HEAD, "## All of them\n", *index, "", *(line for command, ctx in commands for line in _section(command, ctx))]
    )


def _commands(command: Any, parent: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Commands that do something, in the order of `--help`; groups are only their names."""
    ctx = typer.Context(command, info_name=name, parent=parent)
    nested = getattr(command, "commands", None)
    if nested is None:
        yield command, ctx
        return
    for each, one in nested.items():
        if not one.hidden:
            yield from _commands(one, ctx, each)


def _section(command: Any, ctx: Any) -> Iterator[str]:
    yield f"## {ctx.command_path}\n"
    yield f"{_plain(command.help)}\n"
    yield f"```\n{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}\n```\n"
    rows = [
        record for param in command.params if not param.hidden and (record := param.get_help_record(ctx)) is not None
    ]
    if rows:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{_cell(names)}` | {_cell(meaning)} |" for names, meaning in rows)
        yield ""
    yield from _epilog(_plain(command.epilog))


def _epilog(text: str) -> Iterator[str]:
    """Examples, and the exit codes of those that have their own: in the help each line is a paragraph."""
    lines = [line for line in text.split("\n\n") if line and line != "Examples:"]
    examples = [line for line in lines if not line.startswith("Exit codes:")]
    yield "\n".join(["```console", *(f"$ {line}" for line in examples), "```\n"])
    yield from (f"{line}\n" for line in lines if line not in examples)


def _summary(command: Any) -> str:
    return _plain(command.help).partition("\n")[0]


def _plain(text: str | None) -> str:
    return (text or "").replace("\\[", "[").replace("\f", "").strip()


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(render_reference())
