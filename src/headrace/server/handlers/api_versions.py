"""ApiVersions, versions 0-4.

Tells a client which APIs the broker serves, from `protocol.api.SUPPORTED`. Served before a client has authenticated.

- A version that is not served is answered in the layout of v0, with UNSUPPORTED_VERSION and the range of this one
  API, so that the client can ask again: `unsupported_api_versions`.
- v3 names the client's software; a malformed name or version is INVALID_REQUEST.
- v3 also names the cluster's features (`cluster.features`), each at the one level that is supported. Clients that know
  `transaction.version` 2 (KIP-890) give each transaction an epoch of its own.
- Left out: v5, which checks cluster and node ids; no client needs it.
"""

import re
from functools import cache
from typing import Any, Final

from headrace.cluster.features import FEATURES
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE: Final = 3
_SUPPORTED_FEATURES: Final = tuple(
    {"name": feature.name, "min_version": feature.level, "max_version": feature.level} for feature in FEATURES
)
_FINALIZED_FEATURES: Final = tuple(
    {"name": feature.name, "max_version_level": feature.level, "min_version_level": feature.level}
    for feature in FEATURES
)


async def handle_api_versions(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    if info.version >= _FIRST_WITH_SOFTWARE:
        _check_software("ClientSoftwareName", request.client_software_name)
        _check_software("ClientSoftwareVersion", request.client_software_version)
    return {
        "error_code": ErrorCode.none,
        "api_keys": _api_keys(),
        "throttle_time": 0,
        "supported_features": _SUPPORTED_FEATURES,
        "finalized_features_epoch": 0,
        "finalized_features": _FINALIZED_FEATURES,
    }


def unsupported_api_versions() -> bytes:
    """The body of the answer to an ApiVersions request of a version that is not served."""
    own = [entry for entry in _api_keys() if entry["api_key"] == ApiKey.API_VERSIONS]
    answer = {"error_code": ErrorCode.unsupported_version, "api_keys": own}
    return bytes(encode_response(ApiKey.API_VERSIONS, 0, answer))


def _check_software(field: str, text: str | None) -> None:
    if text is None or not _SOFTWARE.fullmatch(text):
        raise CodedError(
            ErrorCode.invalid_request,
            f"{field} must be letters, digits, '-' and '.', with a letter or digit at both ends",
        )


@cache
def _api_keys() -> tuple[dict[str, int], ...]:
    return tuple(
        {"api_key": key.value, "min_version": versions.advertised_min, "max_version": versions.max}
        for key, versions in sorted(SUPPORTED.items())
    )


HANDLERS: Final = {ApiKey.API_VERSIONS: handle_api_versions}
