"""UpdateFeatures, versions 0-2.

The features of a release are at one level each (`cluster.features`), which cannot be raised or lowered. To ask for the
level that is in force changes nothing and is no error; any other is INVALID_UPDATE_VERSION, with why.

- v0 has `allow_downgrade`, v1 an upgrade type and `validate_only` in its place: all ask for the same here.
- v0 and v1 answer for each feature; v2 with one code for all.
"""

from collections import Counter
from typing import Any, Final

from headrace.cluster.features import FEATURES
from headrace.config import shown
from headrace.protocol.acl import AclOperation
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import require_cluster

_FIRST_WITHOUT_RESULTS: Final = 2
_BY_NAME: Final = {feature.name: feature for feature in FEATURES}


async def handle_update_features(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.ALTER)
    updates = request.feature_updates or ()
    counts = Counter(update.feature for update in updates)
    if not updates:
        raise CodedError(ErrorCode.invalid_request, "Can not provide empty FeatureUpdates in the request.")
    results = [
        {"feature": update.feature, **_result(update.feature, update.max_version_level, counts[update.feature])}
        for update in updates
    ]
    failed = next((result for result in results if result["error_code"] is not ErrorCode.none), None)
    if failed is None or info.version < _FIRST_WITHOUT_RESULTS:
        return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "results": results}
    message = f"The update failed for all features since the following feature had an error: {failed['error_message']}"
    return {"throttle_time": 0, "error_code": failed["error_code"], "error_message": message, "results": results}


def _result(name: str, level: int, count: int) -> dict[str, Any]:
    feature = _BY_NAME.get(name)
    code, message = ErrorCode.none, None
    if count > 1:
        code, message = ErrorCode.invalid_request, f"{shown(name)} stands more than once in the request; name it once"
    elif feature is None:
        code = ErrorCode.invalid_update_version
        message = (
            f"Invalid update version {level} for feature {shown(name)}. Brokers here do not support this feature; "
            f"they have {', '.join(_BY_NAME)}"
        )
    elif level != feature.level:
        code = ErrorCode.invalid_update_version
        message = (
            f"Invalid update version {level} for feature {name}. Brokers here only support version {feature.level}: "
            f"{feature.words}"
        )
    return {"error_code": code, "error_message": message}


HANDLERS: Final = {ApiKey.UPDATE_FEATURES: handle_update_features}
