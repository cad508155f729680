"""Tables in an object store: the same promises as in a directory."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import boto3  # type: ignore[import-untyped]
import pytest

from headrace.lake.archiving import Archive, ArchiveOptions
from headrace.lake.compacting import compact
from headrace.lake.errors import CommitConflict
from headrace.lake.opening import FORMATS, Lake, format_of, topics_in
from headrace.lake.places import place_of
from tests.support.process import free_port, wait_for

from .test_archiving import batch_of, by_workers, content, simple

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    # A process of its own: `deltalake` asks some things without letting other threads of this one run.
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for("the object store answers", lambda: _answers(url))
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    client.create_bucket(Bucket="bucket")
    yield {
        "aws_endpoint": url,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    server.terminate()
    server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def test_an_object_is_created_once(storage: dict[str, str]) -> None:
    place = place_of("s3://bucket/place", storage)
    place.create("log/1.json", b"one")
    with pytest.raises(CommitConflict):
        place.create("log/1.json", b"two")
    assert place.read("log/1.json") == b"one"
    assert place.names("log") == ["1.json"]
    assert set(place.walk()) == {"log/1.json"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_topic_is_in_its_table_once(storage: dict[str, str], format: str, tmp_path: object) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"} if format == "iceberg" else {}
    lake = Lake(path=f"s3://bucket/{format}", format=format, options=storage, catalog=catalog)
    archive = Archive(options=ArchiveOptions(lake=lake, partition="none"))
    for start in (0, 10, 20):
        part = simple(0, start, start + 10)
        archive.add([batch_of(part)], by_workers(part))
        archive.add([batch_of(part)], by_workers(part))
    expected = [(0, offset, f"v{offset}".encode()) for offset in range(30)]
    assert content(lake) == expected
    assert compact(lake.table("orders")).after == 1
    assert content(lake) == expected
    assert format_of(lake.path, "orders", storage) == format
    assert topics_in(lake.path, storage) == ["orders"]
