import pytest

from headrace.spark.pipeline.sql import tables_in


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT * FROM a", ["a"]),
        ("select * from A join b on A.x = b.y, c where d in (select e from f)", ["A", "b", "c", "f"]),
        ("SELECT * FROM `my table` LEFT OUTER JOIN b USING (k)", ["my table", "b"]),
        ("SELECT extract(year FROM t), trim(BOTH FROM x), overlay(a PLACING b FROM 2) FROM a", ["a"]),
        ("SELECT a IS NOT DISTINCT FROM b FROM c", ["c"]),
        ("WITH x AS (SELECT * FROM a), y(n) AS (SELECT 1 FROM x) SELECT * FROM x JOIN y USING (k)", ["a"]),
        ("WITH a AS (SELECT * FROM a WHERE (x)) SELECT * FROM a", ["a"]),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a JOIN c) SELECT * FROM a, b", ["c"]),
        ("WITH RECURSIVE a(n) AS (SELECT 1 FROM b UNION ALL SELECT n + 1 FROM a) SELECT * FROM a", ["b"]),
        ("SELECT * FROM a LATERAL VIEW explode(xs) t AS b, c", ["a"]),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b)", ["a", "b"]),
        ("SELECT 'FROM x', \"FROM y\" -- FROM z\n/* FROM w */ FROM a", ["a"]),
        ("SELECT * FROM catalog.schema.t, parquet.`/data/x`, range(10), STREAM a", ["a"]),
        ("FROM a |> JOIN b USING (x) |> WHERE y > 1", ["a", "b"]),
        ("SELECT * FROM (a JOIN b USING (x)) j CROSS JOIN (VALUES (1)) v, c", ["a", "b", "c"]),
        ("SELECT from_json(value, 'x STRING') FROM a UNION ALL SELECT 1 FROM a", ["a"]),
        ("SELECT window(t, '1 minute') w, sum(x) FROM a GROUP BY window(t, '1 minute'), country", ["a"]),
        (
            "SELECT * FROM orders o JOIN payments p ON o.id = p.id AND p.t BETWEEN o.t AND o.t + INTERVAL 1 HOUR",
            ["orders", "payments"],
        ),
        ("SELECT 1", []),
        ("VALUES (1)", []),
        (") FROM a", ["a"]),
    ],
)
def test_the_tables_of_a_query_are_those_after_from_and_join(query: str, tables: list[str]) -> None:
    assert tables_in(query) == tables
