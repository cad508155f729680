"""What the registry answers when it cannot do what was asked: Confluent's statuses, codes and sentences, word for word.

Some clients look into the sentences.
"""

from typing import Final

MAX_ID: Final = 2**31 - 1


class RegistryError(Exception):
    """A refusal with the HTTP status and the `error_code` that clients of Confluent's registry know."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class InvalidSchemaError(Exception):
    """A text that is no schema of its type, or whose references do not resolve; the message says where and why."""


def denied(action: str, subject: str) -> RegistryError:
    return RegistryError(403, 40301, f"User is denied operation {action} on Subject: {subject or '*'}")


def schema_denied(schema_id: int) -> RegistryError:
    """Which subjects have a schema is told to those who may read them, and so is not told here."""
    return RegistryError(403, 40301, f"User is denied operation Read on Schema: {schema_id}")


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    return RegistryError(404, 40402, f"Version {version} not found.")


def schema_not_found(what: int | str | None = None) -> RegistryError:
    return RegistryError(404, 40403, "Schema not found" if what is None else f"Schema {what} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(404, 40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    message = f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    return RegistryError(404, 40406, message)


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    message = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RegistryError(404, 40407, message)


def config_not_set(subject: str) -> RegistryError:
    return RegistryError(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def mode_not_set(subject: str) -> RegistryError:
    return RegistryError(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, reasons: str) -> RegistryError:
    message = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
    return RegistryError(409, 409, message + reasons)


def no_such_path() -> RegistryError:
    return RegistryError(404, 404, "HTTP 404 Not Found")


def empty_schema() -> RegistryError:
    return RegistryError(422, 42201, "Empty schema")


def invalid_schema(reason: str) -> RegistryError:
    return RegistryError(422, 42201, f"Invalid schema: {reason}")


def invalid_version(version: str) -> RegistryError:
    message = (
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and "
        'the string "latest"'
    )
    return RegistryError(422, 42202, message)


def invalid_level() -> RegistryError:
    message = (
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive"
    )
    return RegistryError(422, 42203, message)


def invalid_mode() -> RegistryError:
    message = "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, and IMPORT"
    return RegistryError(422, 42204, message)


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(422, 42205, reason)


def reference_exists(subject: str, version: int) -> RegistryError:
    message = (
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}."
    )
    return RegistryError(422, 42206, message)


def id_does_not_match(schema_id: int) -> RegistryError:
    return RegistryError(422, 42207, f"Overwrite new schema with id {schema_id} is not permitted.")


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(422, 42208, f"The specified subject '{subject}' is not a valid subject.")


def schema_too_large(limit: int) -> RegistryError:
    return RegistryError(422, 42209, f"The schema is too large: at most {limit} bytes are taken.")


def contract_too_large(limit: int) -> RegistryError:
    message = f"References, metadata and rules are too large: at most {limit} bytes are taken."
    return RegistryError(422, 42209, message)


def invalid_rules(reason: str) -> RegistryError:
    return RegistryError(422, 42210, f"Invalid rule set: {reason}")


def unprocessable(reason: str) -> RegistryError:
    return RegistryError(422, 422, reason)


def bad_request(reason: str) -> RegistryError:
    return RegistryError(400, 400, reason)


def store_failed(reason: str) -> RegistryError:
    return RegistryError(500, 50001, f"Error in the backend data store - {reason}")


def timed_out(reason: str) -> RegistryError:
    return RegistryError(500, 50002, reason)
