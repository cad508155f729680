"""Files of pipelines as archives: what is taken, what is refused, what is left of an earlier deployment."""

import io
import zipfile
from pathlib import Path

import pytest

from headrace.spark.service.bundle import MOST_BYTES, BadBundle, collected, packed, place, unpacked


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_directory_is_taken_without_what_is_hidden_compiled_or_elsewhere(tmp_path: Path) -> None:
    for name in ("pipeline.yaml", "steps.py", "sql/orders.sql", ".env", ".git/config", "__pycache__/steps.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "secrets").symlink_to("/etc/hostname")
    file, files = collected(tmp_path)
    assert file == "pipeline.yaml"
    assert sorted(files) == ["pipeline.yaml", "sql/orders.sql", "steps.py"]


def test_a_file_is_taken_with_code_and_schemas_beside_it_alone(tmp_path: Path) -> None:
    for name in ("shop.yaml", "steps.py", "order.avsc", "credentials.json", "other.yaml"):
        (tmp_path / name).write_text(name)
    assert sorted(collected(tmp_path / "shop.yaml")[1]) == ["order.avsc", "shop.yaml", "steps.py"]


def test_a_directory_without_one_pipeline_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=r"there is no YAML file; name the file itself"):
        collected(tmp_path)
    (tmp_path / "a.yaml").write_text("")
    assert collected(tmp_path)[0] == "a.yaml"
    (tmp_path / "b.yaml").write_text("")
    with pytest.raises(BadBundle, match=r"there are a.yaml, b.yaml"):
        collected(tmp_path)


def test_archives_come_back_as_they_were_and_equal_files_make_equal_archives() -> None:
    files = {"pipeline.yaml": b"name: a", "code/steps.py": b"x = 1"}
    assert unpacked(packed(files)) == files
    assert packed(files) == packed(dict(reversed(files.items())))


def test_an_archive_that_is_too_large_is_told_with_its_largest_files() -> None:
    noise = bytes(range(256)) * 8
    import random

    large = random.Random(1).randbytes(700_000)
    with pytest.raises(BadBundle, match=r"the largest are data.bin \(700,000\)"):
        packed({"pipeline.yaml": noise, "data.bin": large})


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a\\b", "..", "a/", "a\nb", "x" * 600]
)
def test_names_that_lead_out_of_the_directory_are_refused(name: str) -> None:
    with pytest.raises(BadBundle):
        unpacked(_renamed(name))


def _renamed(name: str) -> bytes:
    """An archive with a name that the library itself would mend."""
    plain = "p" * len(name.encode())
    return zipped({plain: b"content"}).replace(plain.encode(), name.encode())


def test_bombs_and_noise_are_refused() -> None:
    with pytest.raises(BadBundle, match="unpacks to more than"):
        unpacked(zipped({"a": bytes(MOST_BYTES + 1)}))
    with pytest.raises(BadBundle, match="has 501 files"):
        unpacked(zipped({str(number): b"" for number in range(501)}))
    with pytest.raises(BadBundle, match="cannot be read"):
        unpacked(b"PK\x03\x04 nothing of the kind")


def test_placing_removes_what_is_no_longer_deployed_and_leaves_what_a_run_has_made(tmp_path: Path) -> None:
    work = tmp_path / "work"
    place({"pipeline.yaml": b"1", "old.py": b"", "lib/a.py": b""}, work)
    (work / "out").mkdir()
    (work / "out" / "part-0.parquet").write_text("rows")
    place({"pipeline.yaml": b"2", "lib/b.py": b""}, work)
    assert sorted(str(file.relative_to(work)) for file in work.rglob("*") if file.is_file()) == [
        "lib/b.py",
        "out/part-0.parquet",
        "pipeline.yaml",
    ]
    assert (work / "pipeline.yaml").read_bytes() == b"2"
