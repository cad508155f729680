"""What a YAML file may say, and what is said about one that is wrong."""

from pathlib import Path

import pytest

from headrace.spark.pipeline.graph import unused
from headrace.spark.pipeline.model import (
    Call,
    Dedup,
    Restart,
    Sql,
    Step,
    ToConsole,
    ToFiles,
    ToFunction,
    ToTopic,
    Trigger,
    Watermark,
)
from tests.support.spark.declarations import MINIMAL, declare, mistakes

WHOLE = """
name: orders
bootstrap: 127.0.0.1:9092
trigger: 5 seconds
checkpoint: state
spark:
  spark.sql.shuffle.partitions: 4
sources:
  orders:
    topic: orders
    startingOffsets: earliest
    maxOffsetsPerTrigger: 1000
    failOnDataLoss: false
    kafka.client.id: demo
    watermark: {column: timestamp, delay: 10 minutes}
  payments:
    topics: [cards, transfers]
steps:
  revenue:
    sql: SELECT * FROM unique_orders JOIN payments USING (key);
  unique_orders:
    dedup: {from: orders, keys: [key]}
  late:
    python: late.py:late
    with: {limit: 3}
sinks:
  revenue:
    topic: revenue
    key: country
    format: json
    mode: update
  archive:
    from: revenue
    parquet: out/revenue
    partitionBy: [country]
    trigger: availableNow
    compression: zstd
  each:
    from: late
    python: late.py:send
  shown:
    from: late
    console: 5
"""
LATE = """
def late(orders, spark, limit):
    return orders

def send(rows, batch):
    pass
"""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (tmp_path / "late.py").write_text(LATE)
    return tmp_path


def test_a_whole_declaration_becomes_values(whole: Path) -> None:
    pipeline = declare(whole, WHOLE)
    orders, payments = pipeline.sources
    assert orders.options == {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
        "failOnDataLoss": "false",
        "kafka.client.id": "demo",
    }
    assert orders.watermark == Watermark(column="timestamp", delay="10 minutes")
    assert payments.options == {"subscribe": "cards,transfers"}
    steps = {table.name: table for table in pipeline.tables if isinstance(table, Step)}
    assert steps["revenue"].work == Sql(query="SELECT * FROM unique_orders JOIN payments USING (key)")
    assert steps["revenue"].inputs == ("unique_orders", "payments")
    assert steps["unique_orders"].work == Dedup(table="orders", keys=("key",))
    late = steps["late"].work
    assert isinstance(late, Call)
    assert (late.inputs, late.arguments, late.wants_spark) == (("orders",), {"limit": 3}, True)
    assert pipeline.trigger == Trigger(interval="5 seconds")
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "4"}


def test_each_kind_of_sink_is_known(whole: Path) -> None:
    sinks = {sink.name: sink for sink in declare(whole, WHOLE).sinks}
    assert sinks["revenue"].table == "revenue"
    assert sinks["revenue"].mode == "update"
    assert sinks["revenue"].output == ToTopic(
        columns={"key": "country", "value": "to_json(struct(*))"}, options={"topic": "revenue"}
    )
    assert sinks["archive"].output == ToFiles(
        path="out/revenue", partition_by=("country",), options={"compression": "zstd"}
    )
    assert sinks["archive"].trigger == Trigger(available_now=True)
    assert isinstance(sinks["each"].output, ToFunction)
    assert sinks["shown"].output == ToConsole(rows=5)


def test_tables_stand_after_those_they_read(whole: Path) -> None:
    names = [table.name for table in declare(whole, WHOLE).tables]
    assert names.index("orders") < names.index("unique_orders") < names.index("revenue")


def test_a_sink_needs_only_what_its_table_is_made_of(whole: Path) -> None:
    pipeline = declare(whole, WHOLE)
    assert [table.name for table in pipeline.needed_by("late")] == ["orders", "late"]
    assert {table.name for table in pipeline.needed_by("REVENUE")} == {"orders", "payments", "unique_orders", "revenue"}


def test_variables_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "real")
    pipeline = declare(tmp_path, MINIMAL.replace("topic: orders", "topic: '${TOPIC}', kafka.client.id: '${WHO:-me}'"))
    assert pipeline.sources[0].options == {"subscribe": "real", "kafka.client.id": "me"}


def test_a_mapping_can_be_shared_by_a_merge_key(tmp_path: Path) -> None:
    pipeline = declare(
        tmp_path,
        """
        name: merged
        sources:
          a: &base {topic: a, startingOffsets: earliest}
          b: {<<: *base, topic: b}
        sinks:
          a: {parquet: a}
          b: {parquet: b}
        """,
    )
    assert pipeline.sources[1].options == {"subscribe": "b", "startingOffsets": "earliest"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("name: small", "nam: small"),
            [
                "1: the pipeline has no setting 'nam'; did you mean name?",
                "1: the pipeline needs 'name', for example `name: orders`",
            ],
        ),
        (
            ("name: small", "name: a/b"),
            ["1: the pipeline: the name 'a/b' may have letters, digits, '.', '_' and '-' only"],
        ),
        (
            ("topic: orders", "topc: orders"),
            [
                "3: source 'orders' has no setting 'topc'; did you mean topic?",
                "3: source 'orders' needs a topic, for example `topic: orders`",
            ],
        ),
        (("topic: orders", "topics: [se, no]"), ["3: 'no' is read as false; write that, or 'no' in quotes"]),
        (("topic: orders", "topic: a, subscribe: b"), ["3: source 'orders' has topic and subscribe; keep one"]),
        (
            ("orders: {topic", "9orders: {topic"),
            [
                "3: the name '9orders' of a source must be letters, digits and '_', not starting with a digit",
                "5: sink 'copy': there is no source or step 'orders'; did you mean 9orders?",
            ],
        ),
        (
            ("from: orders", "from: ordres"),
            ["5: sink 'copy': there is no source or step 'ordres'; did you mean orders?"],
        ),
        (("from: orders, ", ""), ["5: sink 'copy' needs 'from', the name of the table to write"]),
        (("parquet: out", "parquet: out, topic: x"), ["5: sink 'copy' has topic and parquet; keep one"]),
        ((", parquet: out", ""), ["5: sink 'copy' needs one of topic, parquet, archive, python, console, connector"]),
        (
            ("parquet: out", "parquet: out, mode: complete"),
            ["5: sink 'copy': files can only be added to: 'mode' must be append, not complete"],
        ),
        (
            ("parquet: out", "parquet: out, mode: apend"),
            ["5: sink 'copy': 'mode' must be one of append, update, complete, not 'apend'; did you mean append?"],
        ),
        (
            ("parquet: out", "parquet: out, trigger: soon"),
            ["5: sink 'copy': the trigger must be a length of time such as 5 seconds, or availableNow, not 'soon'"],
        ),
        (
            ("parquet: out", "parquet: out, partitonBy: a"),
            ["5: sink 'copy' has no setting 'partitonBy'; did you mean partitionBy?"],
        ),
        (
            ("parquet: out", "topic: out, format: json, value: x"),
            ["5: sink 'copy': 'format: json' makes the value of all columns; leave out 'value' or 'format'"],
        ),
        (
            ("parquet: out", "console: many"),
            ["5: sink 'copy': 'console' must be how many rows of a batch to print, for example `console: 20`"],
        ),
        (
            ("topic: orders", "topic: orders, metadata: [key, ofset]"),
            [
                "3: source 'orders': a record has no column 'ofset'; it has key, topic, partition, offset, timestamp, "
                "timestampType, headers, tombstone"
            ],
        ),
        (
            ("topic: orders", "topic: orders, watermark: {column: t, delay: soon}"),
            ["3: source 'orders': 'watermark': the delay must be a length of time such as 10 minutes, not 'soon'"],
        ),
        (("topic: orders", "topic: {a: b}"), ["3: source 'orders': 'topic' must be a name or a list of names"]),
        (
            ("{topic: orders}", "orders"),
            [
                "3: source 'orders' must be a mapping of names to values, not 'orders'",
                "3: source 'orders' needs a topic, for example `topic: orders`",
            ],
        ),
        (
            ("topic: orders", "topic: '${NO_SUCH_VARIABLE}'"),
            ["3: the environment variable NO_SUCH_VARIABLE is not set; set it, or write ${NO_SUCH_VARIABLE:-default}"],
        ),
        (
            ("name: small", "restart: soon\nname: small"),
            ["1: the pipeline: 'restart' must be never, or a mapping of on, delay, maxDelay and attempts"],
        ),
        (
            ("name: small", "name: small\nname: large"),
            ["2: 'name' stands here a second time; one of them would be lost"],
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, change: tuple[str, str], expected: list[str]) -> None:
    assert mistakes(tmp_path, MINIMAL.replace(*change)) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("sql: SELECT * FROM ordes", "there is no source or step 'ordes'; did you mean orders?"),
        ("sql: ''", "the query is empty"),
        ("{}", "needs one of 'sql', 'python' and 'dedup'"),
        ("{sql: SELECT 1, python: 'x.py:y'}", "has sql and python; keep one"),
        ("python: nothing", "'nothing' is not FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("python: no.py:f", "there is no file"),
        ("python: late.py:nope", "late.py has no function 'nope'"),
        ("python: no_such_module:f", "module 'no_such_module' does not load: ModuleNotFoundError"),
        ("python: broken.py:f", "broken.py does not load: ZeroDivisionError: division by zero (line 2)"),
        ("{python: 'late.py:late', with: {limt: 3}}", "the function has no parameter 'limt'; did you mean limit?"),
        ("python: late.py:late", "there is no source or step 'limit'"),
        ("{sql: SELECT 1, with: {a: 1}}", "'with' gives values to a Python function"),
        ("dedup: {from: orders}", "needs 'keys', the columns that tell rows apart"),
        ("dedup: {from: orders, keys: a, within: 1 minute}", "'column' and 'within' belong together"),
        ("dedup: {from: orders, keys: a, column: t, within: x}", "'within' must be a length of time"),
        ("dedup: {from: orders, keys: a}", "dedup needs to know how long to remember"),
    ],
)
def test_a_wrong_step_is_named_with_its_line(whole: Path, step: str, expected: str) -> None:
    (whole / "broken.py").write_text("\n1 / 0\n")
    text = MINIMAL + f"steps:\n  one:\n    {step}\n"
    found = mistakes(whole, text)
    assert any(expected in message for message in found), found
    assert all(message.startswith(("7:", "8:")) for message in found)


def test_steps_in_a_circle_are_shown_as_one(tmp_path: Path) -> None:
    text = MINIMAL + "steps:\n  a: {sql: SELECT * FROM b}\n  b: {sql: SELECT * FROM a}\n"
    assert mistakes(tmp_path, text) == ["7: the steps a -> b -> a go in a circle"]


def test_names_differ_by_more_than_case(tmp_path: Path) -> None:
    text = MINIMAL + "steps:\n  Orders: {sql: SELECT 1}\n"
    (message,) = mistakes(tmp_path, text)
    assert message.startswith("7: the name 'Orders' is taken by ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("restart: never", Restart(attempts=0)),
        ("restart: {}", Restart()),
        (
            "restart: {on: any, delay: 500 milliseconds, maxDelay: 2 minutes, attempts: 7}",
            Restart(on="any", delay=0.5, max_delay=120.0, attempts=7),
        ),
        ("restart: {delay: 2 hours}", Restart(delay=7200.0, max_delay=7200.0)),
    ],
)
def test_a_pipeline_may_say_when_it_starts_again(tmp_path: Path, text: str, expected: Restart) -> None:
    assert declare(tmp_path, f"{MINIMAL}{text}\n").restart == expected


def test_a_wrong_restart_is_told_with_its_line(tmp_path: Path) -> None:
    found = mistakes(tmp_path, MINIMAL + "restart: {on: friday, delay: soon, attempts: many, often: 1}\n")
    assert len(found) == 4
    assert all(message.startswith("6: the pipeline: 'restart'") for message in found)


def test_wrong_options_are_found_beside_other_mistakes(tmp_path: Path) -> None:
    text = MINIMAL.replace("topic: orders}", "topic: orders, startingOffsets: first}").replace("from: orders, ", "")
    found = mistakes(tmp_path, text)
    assert [message.partition(":")[0] for message in found] == ["3", "5"]
    assert "startingOffsets must be earliest, latest or JSON" in found[0]


def test_every_wrong_option_of_a_source_or_sink_is_found_in_one_run(tmp_path: Path) -> None:
    text = """
    name: small
    sources:
      orders:
        topic: orders
        maxOffsetsPerTrigger: -5
        startingOffsets: first
        failOnDataLoss: maybe
        kafka.isolation.level: read_commited
    sinks:
      copy:
        from: orders
        topic: copy
        delivery: twice
        tornBatch: maybe
        kafka.acks: 7
    """
    lines = [message.partition(":")[0] for message in mistakes(tmp_path, text)]
    assert lines == ["5", "6", "7", "8", "13", "14", "15"]


def test_a_wrong_format_is_not_followed_by_what_comes_of_it(tmp_path: Path) -> None:
    text = MINIMAL.replace("topic: orders}", "topic: orders, format: jsno, schema: id BIGINT}")
    assert len(mistakes(tmp_path, text)) == 1


def test_a_sink_without_an_output_is_asked_about_the_words_it_has(tmp_path: Path) -> None:
    found = mistakes(tmp_path, MINIMAL.replace("parquet: out", "topics: out"))
    assert "5: sink 'copy' has no setting 'topics'; did you mean topic?" in found


def test_a_word_that_yaml_takes_for_true_hides_no_other_mistake(tmp_path: Path) -> None:
    text = MINIMAL.replace("topic: orders", "topic: on").replace("from: orders", "from: ordres")
    assert [message.partition(":")[0] for message in mistakes(tmp_path, text)] == ["3", "5"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("checkpoint: !!int abc", "1: 'abc' cannot be read as int; write it in quotes"),
        ("checkpoint: !!int ''", "1: '' cannot be read as int; write it in quotes"),
        ("checkpoint: !!bool abc", "1: 'abc' cannot be read as bool; write it in quotes"),
        ("checkpoint: !secret abc", "1: 'abc' cannot be read as !secret; write it in quotes"),
        (
            "<<: 3",
            "1: '<<' does not name a mapping: expected a mapping or list of mappings for merging, but found scalar",
        ),
        ("spark: &self {a: *self}", "1: a value holds itself by an alias, or is nested too deeply"),
        ("checkpoint: a\x01", "1: this is not YAML"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_told_with_its_line(tmp_path: Path, line: str, expected: str) -> None:
    (found,) = mistakes(tmp_path, f"{line}\n{MINIMAL}")
    assert found.startswith(expected)


def test_a_date_is_the_text_that_was_written(tmp_path: Path) -> None:
    assert declare(tmp_path, f"checkpoint: 2024-99-99\n{MINIMAL}").checkpoint == "2024-99-99"


def test_a_source_knows_where_its_dead_letters_go(tmp_path: Path) -> None:
    for option in ("deadLetterTopic: dead", "badRecords: deadLetterTopic=dead"):
        text = MINIMAL.replace("topic: orders}", f"topic: orders, format: json, schema: id BIGINT, {option}}}")
        (source,) = declare(tmp_path, text).sources
        assert source.dead_letter_topic == "dead"
    (plain,) = declare(tmp_path, MINIMAL).sources
    assert plain.dead_letter_topic == ""


def test_every_mistake_is_found_in_one_run(tmp_path: Path) -> None:
    text = MINIMAL.replace("topic: orders", "topc: orders").replace("parquet: out", "parqet: out")
    assert [message.partition(":")[0] for message in mistakes(tmp_path, text)] == ["3", "3", "5", "5"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: the file is empty"),
        ("a: [", "1: this is not YAML: "),
        ("- a", "1: the pipeline must be a mapping of names to values, not a list"),
        ("name: x\nsources: {a: {topic: a}}", "1: the pipeline has no sinks"),
    ],
)
def test_what_is_no_declaration_is_told_so(tmp_path: Path, text: str, expected: str) -> None:
    assert mistakes(tmp_path, text)[0].startswith(expected)


def test_a_table_that_feeds_no_sink_is_pointed_out(tmp_path: Path) -> None:
    pipeline = declare(tmp_path, MINIMAL + "steps:\n  idle: {sql: SELECT * FROM orders}\n")
    assert [message for _, message in unused(pipeline)] == ["'idle' feeds no sink, so it is not run"]
