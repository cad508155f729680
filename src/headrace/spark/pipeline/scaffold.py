"""The pipeline that `headrace pipeline new` writes."""

from pathlib import Path
from typing import Final

_YAML: Final = """\
# Counts the words that come in on the topic `lines`, and writes the counts to the topic `words`.
name: {name}

sources:
  lines:
    topic: lines
    startingOffsets: earliest

steps:
  words:
    python: steps.py:split_words
  counted:
    sql: |
      SELECT word, count(*) AS times
      FROM words
      GROUP BY word

sinks:
  counts:
    from: counted
    topic: words
    mode: update
    key: word
    format: json
"""

_STEPS: Final = '''\
"""Steps of the pipeline: functions from DataFrames, named by their parameters, to a DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, explode, lower, split


def split_words(lines: DataFrame) -> DataFrame:
    """One row for each word of each line."""
    text = col("value").cast("string")
    return lines.select(explode(split(lower(text), r"\\W+")).alias("word")).where("word <> ''")
'''


def write_example(directory: Path) -> list[Path]:
    """Write the files, the pipeline first; FileExistsError if one of them is there."""
    directory.mkdir(parents=True, exist_ok=True)
    name = "".join(letter for letter in directory.resolve().name if letter.isalnum() or letter in "._-").lstrip("._-")
    contents = {"pipeline.yaml": _YAML.format(name=name or "pipeline"), "steps.py": _STEPS}
    written = []
    for file, content in contents.items():
        with (directory / file).open("x", encoding="utf-8") as out:
            out.write(content)
        written.append(directory / file)
    return written
