from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.server.handlers.api_versions import unsupported_api_versions
from tests.support.handlers import Harness, versions


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_lists_what_is_served_in_every_version(broker: Harness, version: int) -> None:
    answer = broker.ask(ApiKey.API_VERSIONS, version, client_software_name="java", client_software_version="4.1.0")
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert answer.error_code is ErrorCode.none
    assert listed == {key: (served.advertised_min, served.max) for key, served in SUPPORTED.items()}
    assert all(low <= high for low, high in listed.values())


@pytest.mark.parametrize("name", ["", "-java", "java-", "ja va", "jävä", "a\n"])
def test_a_malformed_software_name_is_refused(broker: Harness, name: str) -> None:
    with pytest.raises(CodedError) as caught:
        broker.ask(ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version="1")
    assert caught.value.code is ErrorCode.invalid_request
    with pytest.raises(CodedError):
        broker.ask(ApiKey.API_VERSIONS, 4, client_software_name="java", client_software_version=name)


def test_a_version_that_is_not_served_gets_the_range_in_the_oldest_layout() -> None:
    body = unsupported_api_versions()
    answer: Any
    answer, end = entity_reader(load_response_schema(18, 0))(body, 0)
    assert end == len(body)
    assert answer.error_code is ErrorCode.unsupported_version
    assert [(e.api_key, e.min_version, e.max_version) for e in answer.api_keys] == [(18, 0, 4)]
