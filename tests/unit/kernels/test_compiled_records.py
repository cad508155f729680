"""The compiled check of records: it says what its source says, reads no byte too far, and is loaded with care."""

import asyncio
import os
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import build, native, records, trials
from headrace.kernels.elf import FunctionCode, NotSelfContained, code_of
from headrace.kernels.layout import layout
from headrace.protocol import validation
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.errors import CodedError
from headrace.protocol.records import Record, decode_records, encode_batch
from headrace.server import compiled
from tests.support.kernels import Fenced

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def code() -> FunctionCode:
    return build.compiled(native.RECORDS)


@pytest.fixture(scope="module")
def function(code: FunctionCode) -> native.Function:
    return native.run(code)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return native.cache_file(native.RECORDS)


KEYS = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(0, 1 << 50),
        key=KEYS,
        value=KEYS,
        headers=st.lists(st.tuples(st.text(max_size=5), KEYS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=80,
)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)


def said(function: native.Function, body: bytes, count: int) -> tuple[int, list[int]]:
    state = array("q", [len(body), count, *[0] * (records.STATE_SIZE - 2)])
    fenced = Fenced(body)
    return function(fenced.address, state.buffer_info()[0]), list(state)


def source_says(body: bytes, count: int) -> tuple[int, list[int]]:
    state = [len(body), count, *[0] * (records.STATE_SIZE - 2)]
    return records.walk(body, state), state


@settings(deadline=None)
@given(RECORDS, CHANGES, st.integers(-1, 1), st.integers(0, 12))
def test_compiled_code_and_its_source_agree_on_sound_and_on_damaged_batches(
    function: native.Function, items: list[Record], changes: list[tuple[int, int]], more: int, cut: int
) -> None:
    body = encode_batch(items)[HEADER_SIZE:]
    for at, byte in changes:
        body[at % len(body)] = byte
    del body[len(body) - cut :]
    count = len(items) + more
    assert said(function, bytes(body), count) == source_says(bytes(body), count)


LIKE = st.tuples(KEYS, KEYS, st.integers(2, 200), st.sampled_from([1, 64, 5_000, 1_000_000]))


@settings(deadline=None)
@given(LIKE, st.randoms(use_true_random=False), CHANGES)
def test_they_agree_on_records_that_are_like_each_other(
    function: native.Function,
    like: tuple[bytes | None, bytes | None, int, int],
    random: Random,
    changes: list[tuple[int, int]],
) -> None:
    key, value, count, times = like
    body = encode_batch([Record(0, random.randrange(times), key, value) for _ in range(count)])[HEADER_SIZE:]
    assert said(function, bytes(body), count) == source_says(bytes(body), count)
    for at, byte in changes:
        body[at % len(body)] = byte
    assert said(function, bytes(body), count) == source_says(bytes(body), count)


def test_they_agree_on_each_change_of_a_byte(function: native.Function) -> None:
    count = 66
    body = encode_batch([Record(0, at % 3, None, b"v" * 9) for at in range(count)])[HEADER_SIZE:]
    for at in range(len(body) - 80, len(body)):
        for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, body[at] ^ 1, body[at] ^ 0x80):
            before, body[at] = body[at], byte
            assert said(function, bytes(body), count) == source_says(bytes(body), count)
            body[at] = before


@pytest.mark.parametrize("times", [0, 5_000])
def test_they_agree_on_any_byte_in_the_first_records_that_are_like_another(
    function: native.Function, times: int
) -> None:
    body = encode_batch([Record(0, times * (at > 0), None, b"v" * 9) for at in range(5)])[HEADER_SIZE:]
    for at in range(len(body)):
        before = body[at]
        for byte in range(256):
            body[at] = byte
            assert said(function, bytes(body), 5) == source_says(bytes(body), 5)
        body[at] = before


@pytest.mark.parametrize("count", [64, 65, 8_192, 8_193, 9_000])
def test_they_agree_where_offsets_grow_longer(function: native.Function, count: int) -> None:
    body = bytes(encode_batch([Record(0, at, b"k", b"v" * 9) for at in range(count)])[HEADER_SIZE:])
    assert said(function, body, count) == source_says(body, count)
    assert said(function, body, count)[0] == records.SOUND


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=120), st.integers(0, 1 << 31))
def test_they_agree_on_any_bytes(function: native.Function, body: bytes, count: int) -> None:
    assert said(function, body, count) == source_says(body, count)


@pytest.fixture(scope="module")
def bind() -> native.Bind:
    places = layout()
    assert places is not None
    return native.bound(build.compiled_check(places))


def new_state() -> "array[int]":
    return array("q", bytes(8 * records.STATE_SIZE))


@settings(deadline=None)
@given(RECORDS, CHANGES, st.integers(-1, 1), st.integers(0, 12))
def test_the_check_of_a_whole_batch_says_what_the_source_says(
    bind: native.Bind, items: list[Record], changes: list[tuple[int, int]], more: int, cut: int
) -> None:
    batch = encode_batch(items)
    for at, byte in changes:
        batch[HEADER_SIZE + at % (len(batch) - HEADER_SIZE)] = byte
    del batch[len(batch) - cut :]
    count = len(items) + more
    batch[HEADER_SIZE - 4 : HEADER_SIZE] = count.to_bytes(4, "big")
    fault, expected = source_says(bytes(batch[HEADER_SIZE:]), count)
    padded = memoryview(b"before" + batch + b"behind")[6:-6]
    state = bind(new_state())(padded)
    assert (state[records.FAULT], list(state)[: records.FAULT]) == (fault, expected[: records.FAULT])


def test_the_check_of_a_whole_batch_leaves_other_objects_and_the_counts_of_references_alone(bind: native.Bind) -> None:
    state = new_state()
    check = bind(state)
    view = memoryview(encode_batch([Record(0, 0, None, b"v")]))
    before = sys.getrefcount(state), sys.getrefcount(view)
    for _ in range(1_000):
        assert check(view)[records.FAULT] == records.SOUND
        for other in (None, b"bytes", bytearray(100), 7, array("q")):
            assert check(other)[records.FAULT] == records.CUT_SHORT  # type: ignore[arg-type]
    assert (sys.getrefcount(state), sys.getrefcount(view)) == before


def test_the_build_keeps_no_check_of_batches_that_is_wrong() -> None:
    def bind(state: "array[int]") -> native.Check:
        return lambda _: state

    with pytest.raises(native.Unusable, match="wrong"):
        trials.check_bound(bind)


def test_what_a_whole_batch_is_refused_for_is_said_by_the_check_of_its_records(bind: native.Bind) -> None:
    batch = memoryview(encode_batch([Record(0, 7, None, b"v"), Record(0, 9, b"k", b"w")]))
    header = read_header(batch)
    wrong = memoryview(bytearray(batch[: HEADER_SIZE - 4]) + (3).to_bytes(4, "big") + batch[HEADER_SIZE:])
    said = []
    try:
        for each in (None, bind):
            validation.use_compiled(None, each)
            sound = list(validation.check_plain_records(batch, header)[records.NEWEST : records.KEYLESS + 2])
            with pytest.raises(CodedError, match="17 bytes cannot hold 3 records") as refused:
                validation.check_plain_records(wrong, read_header(wrong))
            said.append((sound, str(refused.value)))
    finally:
        validation.use_compiled(None)
    assert said[0] == said[1]
    assert said[0][0] == [2, 0, 1, 0]


@settings(deadline=None)
@given(RECORDS, CHANGES)
def test_what_passes_the_check_can_be_read(items: list[Record], changes: list[tuple[int, int]]) -> None:
    batch = encode_batch(items)
    for at, byte in changes:
        batch[HEADER_SIZE + at % (len(batch) - HEADER_SIZE)] = byte
    try:
        learned = validation.check_records(memoryview(batch), HEADER_SIZE, len(items))
    except CodedError:
        return
    found = decode_records(batch)
    newest = max(record.timestamp for record in found)
    assert (len(found), newest) == (len(items), items[0].timestamp + learned[records.NEWEST])


@pytest.mark.parametrize("place", [0, 1, 65])
def test_attributes_that_clients_in_python_cannot_read_are_refused(function: native.Function, place: int) -> None:
    count = 66
    body = encode_batch([Record(0, 0, None, b"v" * 9) for _ in range(count)])[HEADER_SIZE:]
    starts = [16 * at + max(at - 64, 0) for at in range(count)]  # offsets from 64 on take a byte more
    assert starts[-1] + 17 == len(body)
    body[starts[place] + 1] = 0x7F
    assert said(function, bytes(body), count)[0] == records.SOUND
    body[starts[place] + 1] = 0x80
    assert said(function, bytes(body), count)[0] == place << 4 | records.WRONG_ATTRIBUTES
    assert source_says(bytes(body), count)[0] == place << 4 | records.WRONG_ATTRIBUTES


def record_with(key: bytes, headers: bytes) -> bytes:
    body = b"\0\0\0" + key + b"\2v" + headers
    return bytes([2 * len(body)]) + body


@pytest.mark.parametrize("null", [b"\1", b"\x81\0", b"\x81\x80\0", b"\x81\x80\x80\x80\0"])
def test_a_length_of_null_is_known_in_however_many_bytes_it_is_written(function: native.Function, null: bytes) -> None:
    keyless = record_with(null, b"\0")
    status, state = said(function, keyless, 1)
    assert (status, state[records.KEYLESS]) == (records.SOUND, 1)
    assert (status, state) == source_says(keyless, 1)
    unnamed = record_with(b"\2k", b"\2" + null + b"\2w")
    assert said(function, unnamed, 1)[0] == records.WRONG_HEADERS
    assert source_says(unnamed, 1)[0] == records.WRONG_HEADERS


def test_sound_batches_pass_the_compiled_check(function: native.Function) -> None:
    body = encode_batch([Record(0, 5 + at % 9, None, b"v" * at) for at in range(9_000)])[HEADER_SIZE:]
    status, state = said(function, bytes(body), 9_000)
    assert (status, state[records.NEWEST], state[records.OLDEST]) == (records.SOUND, 8, 0)
    assert state[records.KEYLESS] == 9_000


@pytest.mark.parametrize("kernel", native.KERNELS)
def test_the_build_keeps_no_code_that_is_wrong(kernel: str) -> None:
    def wrong(_: int | bytes, __: int) -> int:
        return records.SOUND

    with pytest.raises(native.Unusable, match="wrong"):
        trials.check(kernel, wrong)


def test_code_is_found_again_in_the_cache(cache: Path, code: FunctionCode) -> None:
    with pytest.raises(native.Unusable):
        native.load(native.RECORDS)
    assert native.store(native.RECORDS, code) == cache
    assert (cache.stat().st_mode & 0o777, cache.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert said(native.load(native.RECORDS), b"\x0c\0\0\0\x01\x01\0", 1)[0] == records.SOUND


def damage(cache: Path) -> Iterator[tuple[str, bytes]]:
    whole = cache.read_bytes()
    yield "a changed byte", whole[:-1] + bytes([whole[-1] ^ 1])
    yield "another beginning", whole[:8] + b"\1" + whole[9:]
    yield "cut short", whole[:20]
    yield "empty", b""


def test_damaged_code_is_never_run(cache: Path, code: FunctionCode) -> None:
    native.store(native.RECORDS, code)
    for _, data in damage(cache):
        cache.write_bytes(data)
        with pytest.raises(native.Unusable):
            native.load(native.RECORDS)


@pytest.mark.parametrize("of_directory", [False, True])
def test_code_that_others_could_have_written_is_never_run(cache: Path, code: FunctionCode, of_directory: bool) -> None:
    native.store(native.RECORDS, code)
    (cache.parent if of_directory else cache).chmod(0o777)
    with pytest.raises(native.Unusable, match="alone"):
        native.load(native.RECORDS)


def test_prepared_code_needs_neither_a_compiler_nor_a_cache(
    code: FunctionCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(native, "find_spec", lambda _: None)
    native._key.cache_clear()
    with pytest.raises(native.Unusable, match="numba is not installed"):
        native.load(native.RECORDS)
    monkeypatch.setenv(native.PREPARED, str(tmp_path / "prepared"))
    prepared = native.store(native.RECORDS, code, tmp_path / "prepared")
    assert (prepared.stat().st_mode & 0o777, prepared.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    native.load(native.RECORDS)
    prepared.chmod(0o666)
    with pytest.raises(native.Unusable, match="not this user's alone"):
        native.load(native.RECORDS)


def test_a_link_to_code_is_never_followed(cache: Path, code: FunctionCode, tmp_path: Path) -> None:
    native.store(native.RECORDS, code)
    cache.rename(tmp_path / "elsewhere")
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(native.Unusable):
        native.load(native.RECORDS)


@pytest.mark.parametrize("home", [None, "/nowhere/of/another", "relative", "/tmp/" + "a" * 5_000])
def test_a_user_whose_home_cannot_be_used_has_the_cache_among_temporary_files(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", home or "")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id without an entry
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert native.cache_file(native.RECORDS).parent == tmp_path / f"headrace-kernels-{os.geteuid()}"


def test_the_build_imports_nothing_from_the_directory_that_the_broker_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "__init__.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    command = (*compiled.BUILD[:-1], "headrace.kernels")  # no program, which Python says once it has found the package
    assert "headrace.kernels.__main__" in asyncio.run(compiled.run(command))


def object_file(source: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(source)))


def test_code_that_refers_to_something_outside_is_refused() -> None:
    alone = "define i64 @walk(i64 %a) { ret i64 %a }"
    assert code_of(object_file(alone), "walk").data
    calling = "declare i64 @other() define i64 @walk() { %r = call i64 @other() ret i64 %r }"
    with pytest.raises(NotSelfContained, match="outside"):
        code_of(object_file(calling), "walk")
    with pytest.raises(NotSelfContained, match="no function"):
        code_of(object_file(alone), "run")


@pytest.mark.parametrize(
    "image", [b"", b"no object file", b"\x7fELF\x02\x01" + bytes(100), b"\x7fELF\x02\x01" + b"\7" * 100]
)
def test_what_is_no_object_file_is_refused(image: bytes) -> None:
    with pytest.raises(NotSelfContained):
        code_of(image, "walk")
