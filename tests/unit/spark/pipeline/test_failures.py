"""The cause, out of texts as Spark 4 really gave them (shortened in the middle)."""

import pytest

from headrace.spark.pipeline.failures import cause_of

STATE = """
=== Streaming Query ===
Identifier: [id = 43fdcab4-bdd8-4f45-b53b-4bfc629d1f69, runId = 10abc3ab-2d08-4a75-8ea7-bd582669fc13]
Current Committed Offsets: {}
Current Available Offsets: {}

Current State: INITIALIZING
Thread State: RUNNABLE"""

REFUSED = (
    """\
[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source initialize source: Traceback (most recent call last):
  File "/v/site-packages/pyspark/python/lib/pyspark.zip/pyspark/sql/streaming/runner.py", line 258, in main
  File "/v/site-packages/headrace/spark/data_source.py", line 50, in streamReader
    raise ConfigError(message)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^
headrace.config.setting.ConfigError: unknown option subscrbe; did you mean subscribe?

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/v/site-packages/pyspark/python/lib/pyspark.zip/pyspark/sql/streaming/runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000"""
    + STATE
)

USERS_FUNCTION = (
    """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/home/me/shop/fraud.py", line 32, in flag
    raise KeyError("card")
KeyError: 'card'
 SQLSTATE: 38000"""
    + STATE
)

CHAINED = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/home/me/shop/fraud.py", line 3, in flag
OSError: no route

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/shop/fraud.py", line 5, in flag
shop.errors.LookupFailed: the service is away
try later
 SQLSTATE: 38000"""

DIVIDED = (
    """\
[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0. SQLSTATE: 22012
== SQL (line 1, position 1) ==
1/(i-i) x
^^^^^^^
"""
    + STATE
)

IN_A_FUNCTION_FOR_BATCHES = (
    """\
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/v/site-packages/py4j/clientserver.py", line 645, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
== SQL (line 1, position 8) ==
SELECT 1 / (number - number) AS x FROM parsed
       ^^^^^^^^^^^^^^^^^^^^^

 SQLSTATE: 39000"""
    + STATE
)

ANALYSIS = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean `i`? \
SQLSTATE: 42703; line 1 pos 0;
'Project ['nope]
+- ~StreamingRelationV2 spike, [i#26], name=<Unassigned>
"""

PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 't': extra input 't'. SQLSTATE: 42601 (line 1, pos 13)

== SQL ==
select * fro t
-------------^^^
"""

JAVA = """An error occurred while calling o208.start.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the source: x. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(QueryExecutionErrors.scala:770)
Caused by: java.lang.ClassNotFoundException: x.DefaultSource
\t... 14 more
"""

CONNECT = f"""(STREAM_FAILED) [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012{STATE}

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution$$anon$1.run(StreamExecution.scala:236)
"""


def spark_error(text: str) -> Exception:
    kind = type("SomeSparkException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    error = kind(text)
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (REFUSED, "unknown option subscrbe; did you mean subscribe?"),
        (USERS_FUNCTION, "KeyError: 'card' (fraud.py, line 32)"),
        (CHAINED, "LookupFailed: the service is away\ntry later (fraud.py, line 5)"),
        (DIVIDED, "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0."),
        (IN_A_FUNCTION_FOR_BATCHES, "[DIVIDE_BY_ZERO] Division by zero."),
        (
            ANALYSIS,
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean `i`?",
        ),
        (PARSE, "[PARSE_SYNTAX_ERROR] Syntax error at or near 't': extra input 't'."),
        (JAVA, "[DATA_SOURCE_NOT_FOUND] Failed to find the source: x."),
        (CONNECT, "[DIVIDE_BY_ZERO] Division by zero."),
    ],
    ids=["refused", "function", "chained", "divided", "batches", "analysis", "parse", "java", "connect"],
)
def test_the_cause_stands_alone(text: str, cause: str) -> None:
    assert cause_of(spark_error(text)) == cause


def test_an_error_of_a_function_that_was_called_here_keeps_its_name() -> None:
    assert cause_of(ValueError("no such column")) == "ValueError: no such column"
    assert cause_of(ValueError()) == "ValueError"


REFUSED_BY_MODE = """\
Join between two streaming DataFrames/Datasets is not supported in Complete output mode, only in Append and Update;
Join Inner
:- SubqueryAlias a
:  +- ~EventTimeWatermark 5578bd5a, timestamp#0: timestamp, 1 minutes
+- SubqueryAlias b"""


def test_the_tree_of_a_plan_is_no_part_of_the_cause() -> None:
    from pyspark.errors import AnalysisException

    found = cause_of(AnalysisException(REFUSED_BY_MODE))
    assert found == (
        "Join between two streaming DataFrames/Datasets is not supported in Complete output mode, only in Append and "
        "Update"
    )


def test_our_own_errors_speak_for_themselves() -> None:
    from headrace.config.setting import ConfigError

    assert cause_of(ConfigError("there is no column x")) == "there is no column x"
