"""Call functions in Spark tasks; plan a job where the log can be read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from commitlog.errors import CommitLogError, NotALogError
from commitlog.spark.progress_bar import bar
from commitlog.spark.worker import not_mounted, settle_down

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Done = TypeVar("Done")


def run(spark: SparkSession, title: str, items: list[Item], work: Callable[[Item], Done]) -> list[Done]:
    """Call `work` for each item in its own task; returns the results in order."""

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        settle_down()
        for batch in numbers:
            done = [pickle.dumps((number, work(items[number]))) for number in batch.column(0).to_pylist()]
            yield pa.record_batch({"done": pa.array(done, pa.binary())})

    if not items:
        return []
    with bar(spark, title):
        rows = spark.range(0, len(items), 1, len(items)).mapInArrow(task, "done BINARY").collect()
    found: dict[int, Done] = dict(pickle.loads(row.done) for row in rows)
    return [found[number] for number in range(len(items))]


def planned(spark: SparkSession, path: str, plan: Callable[[], Done]) -> Done:
    """Call `plan`, which reads the log at `path`: in this process, or, with Spark Connect, in a task.

    A client of Spark Connect need not have the log's directory. Errors of the library are raised here, too.
    """
    if getattr(spark, "sparkContext", None) is not None:
        return plan()

    def answer(_: None) -> tuple[Done | None, CommitLogError | None]:
        try:
            return plan(), None
        except NotALogError as problem:
            return None, not_mounted(path, problem)
        except CommitLogError as problem:
            return None, problem
        except OSError as problem:
            return None, not_mounted(path, problem)

    ((found, problem),) = run(spark, "plan", [None], answer)
    if problem is not None:
        raise problem
    return found  # type: ignore[return-value]
