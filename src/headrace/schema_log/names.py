"""Subjects and their contexts: `orders-value`, or `:.context:orders-value` outside the default context."""

from typing import Final

DEFAULT_CONTEXT: Final = "."
EVERY_CONTEXT: Final = ":*:"
"""In the place of a context: all of them."""
EVERYTHING: Final = ""
"""The scope of settings that hold wherever nothing nearer is set."""

MAX_SUBJECT: Final = 1000


def split(subject: str) -> tuple[str, str]:
    """The context and the plain name of a subject as a caller wrote it."""
    if not subject.startswith(":."):
        return DEFAULT_CONTEXT, subject
    context, colon, name = subject[1:].partition(":")
    return (context, name) if colon else (context, "")


def normalized(subject: str) -> str:
    """One spelling per subject: the default context is not written."""
    context, name = split(subject)
    return join(context, name)


def join(context: str, name: str) -> str:
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def context_of(subject: str) -> str:
    return split(subject)[0]


def beside(parent: str, subject: str) -> str:
    """A reference's subject: in the context of the schema that refers to it, unless it names another."""
    if subject.startswith(":."):
        return normalized(subject)
    return join(context_of(parent), subject)


def scopes(subject: str) -> tuple[str, ...]:
    """Where settings for a subject are looked for, nearest first."""
    context, name = split(subject)
    wide = (EVERYTHING,) if context == DEFAULT_CONTEXT else (join(context, ""), EVERYTHING)
    return (subject, *wide) if name else wide


def is_valid(subject: str) -> bool:
    """Whether a schema may be registered under this name."""
    name = split(subject)[1]
    return len(name) > 0 and len(subject) <= MAX_SUBJECT and name.isprintable()
