"""`commitlog transactions`, and how other commands deal with transactions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import copy_as_if_killed

import commitlog
from cli.rig import BEGAN, call, environment, ok, ok_json, undecided
from cli.test_dump import dumped
from commitlog import TransactionAbortedError
from commitlog.cli.top import Watcher
from commitlog.transactions.coordinator import Coordinator

UNCOMMITTED = ("--isolation-level", "read_uncommitted")


def left(tmp_path: Path) -> Path:
    """A log whose writer was killed while a transaction was open."""
    with undecided(tmp_path / "log") as (log, _):
        return copy_as_if_killed(log, tmp_path / "left")


# --- list and describe


def test_transactions_are_listed_while_another_process_writes(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        (row,) = ok_json("transactions", "list", tmp_path)
        assert (row["transactional_id"], row["state"], row["partitions"]) == ("billing-1", "Ongoing", 2)
        assert (row["timeout_ms"], row["age_ms"] >= 6_000) == (60_000, True)
        text = ok("transactions", "list", tmp_path, "--open").splitlines()[1].split()
        assert text[:2] == ["billing-1", "Ongoing"]
        producer.commit_transaction()
        (row,) = ok_json("transactions", "list", tmp_path)
        assert (row["state"], row["age_ms"]) == ("CompleteCommit", None)
        assert ok("transactions", "list", tmp_path, "--open") == "no open transactions\n"


def test_a_log_without_transactions_says_so(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert ok("transactions", "list", tmp_path) == "no transactions\n"
    assert ok_json("transactions", "list", tmp_path) == []


def test_a_transaction_is_described_with_the_places_where_it_is_open(tmp_path: Path) -> None:
    with undecided(tmp_path) as (log, _):
        found = ok_json("transactions", "describe", tmp_path, "billing-1")
        (known,) = log.transactions()
        assert (found["state"], found["producer_id"], found["epoch"]) == ("Ongoing", known.producer_id, 2)
        assert found["partitions"] == [
            {"topic": "orders", "partition": 0, "first_offset": 5, "last_stable_offset": 5},
            {"topic": "pay", "partition": 0, "first_offset": 0, "last_stable_offset": 0},
        ]
        text = ok("transactions", "describe", tmp_path, "billing-1").splitlines()
        assert text[0].startswith("transactional id billing-1: Ongoing, for ")
        assert text[3].split() == ["orders", "0", "5", "5"]


def test_a_transaction_without_an_id_is_listed_while_it_is_open(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("t")
        with log.transaction() as txn:
            txn.append_many("t", [b"x" * 1000] * 2000)  # too much to hold until the commit
            (row,) = ok_json("transactions", "list", tmp_path)
            assert (row["transactional_id"][:10], row["state"]) == ("anonymous-", "Ongoing")
            assert ok("transactions", "describe", tmp_path, row["transactional_id"])
        assert ok_json("transactions", "list", tmp_path) == []


def test_an_id_that_nobody_has_is_one_sentence(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    result = call("transactions", "describe", tmp_path, "nobody")
    assert (result.exit_code, result.stderr) == (1, "Error: no transactional id 'nobody'\n")
    for more in ([], ["--yes"], ["--shared"]):
        result = call("transactions", "abort", tmp_path, "nobody", *more)
        assert (result.exit_code, result.stderr) == (1, "Error: 'nobody' has no open transaction\n")


def test_a_deleted_topic_has_no_offsets_of_a_transaction_any_more(tmp_path: Path) -> None:
    with undecided(tmp_path) as (log, producer):
        producer.commit_transaction()
        log.delete_topic("pay")
        found = ok_json("transactions", "describe", tmp_path, "billing-1")
    assert [(one["topic"], one["last_stable_offset"]) for one in found["partitions"]] == [
        ("orders", 8), ("pay", None)
    ]  # fmt: skip


# --- abort


def test_what_a_killed_process_left_open_is_aborted_after_asking(tmp_path: Path) -> None:
    path = left(tmp_path)
    assert ok("consume", path, "orders") == "plain\ncommitted\n"
    refused = call("transactions", "abort", path, "billing-1", stdin="n\n")
    assert refused.stderr.startswith(
        "abort the transaction of 'billing-1', and discard its records in 2 partitions? [y/N]"
    )
    assert refused.stderr.endswith("Error: nothing was changed\n")
    assert ok("consume", path, "orders") == "plain\ncommitted\n"
    assert ok_json("transactions", "abort", path, "billing-1", "--yes") == {
        "transactional_id": "billing-1", "aborted": True
    }  # fmt: skip
    assert ok("consume", path, "orders") == "plain\ncommitted\nafter\n"
    assert call("transactions", "abort", path, "billing-1", "--yes").exit_code == 1


def test_a_log_that_somebody_writes_alone_is_left_alone(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        result = call("transactions", "abort", tmp_path, "billing-1", "--yes")
        assert (result.exit_code, "is open for writing in process" in result.stderr) == (1, True)
        producer.commit_transaction()


def test_the_owner_of_a_transaction_that_was_aborted_learns_of_it(tmp_path: Path) -> None:
    with undecided(tmp_path, "shared") as (_, producer):
        text = ok("transactions", "abort", tmp_path, "billing-1", "--yes", "--shared")
        assert text == "aborted the transaction of 'billing-1'\n"
        assert ok("consume", tmp_path, "orders") == "plain\ncommitted\nafter\n"
        (row,) = ok_json("transactions", "list", tmp_path)
        assert row["state"] == "CompleteAbort"
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()


def test_a_transaction_of_a_process_that_was_killed_is_found_and_aborted(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from cli.rig import undecided\n"
        "with undecided(Path(sys.argv[1]), 'shared'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program, tmp_path, tests], env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert ok_json("transactions", "list", tmp_path)[0]["state"] == "Ongoing"
    ok("transactions", "abort", tmp_path, "billing-1", "--yes", "--shared")
    assert ok("consume", tmp_path, "orders") == "plain\ncommitted\nafter\n"


# --- commands that read records


def test_consume_prints_what_is_committed_unless_told_otherwise(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        assert ok("consume", tmp_path, "orders", "--offsets") == "0\tplain\n1\tcommitted\n"
        every = "0\tplain\n1\tcommitted\n3\taborted\n5\topen\n6\tafter\n"
        assert ok("consume", tmp_path, "orders", "--offsets", *UNCOMMITTED) == every
        assert (
            ok("consume", tmp_path, "orders", "-p", 0, "--from", 6) == ""
        )  # it is there, but not yet for readers
        assert ok("consume", tmp_path, "orders", "--from", f"@{BEGAN + 3_000}") == ""
        assert (
            ok("consume", tmp_path, "orders", "--from", f"@{BEGAN + 3_000}", *UNCOMMITTED) == "open\nafter\n"
        )
        producer.commit_transaction()
        assert ok("consume", tmp_path, "orders").split() == ["plain", "committed", "open", "after"]
    assert call("consume", tmp_path, "orders", "--isolation-level", "none").exit_code == 2


@pytest.mark.parametrize(
    ("last", "expected"),
    [(0, []), (1, ["committed"]), (2, ["plain", "committed"]), (9, ["plain", "committed"])],
)
def test_the_last_records_are_counted_without_markers(tmp_path: Path, last: int, expected: list[str]) -> None:
    with undecided(tmp_path):
        assert ok("consume", tmp_path, "orders", "--last", last).split() == expected
        assert len(ok("consume", tmp_path, "orders", "--last", last, *UNCOMMITTED).split()) == min(last, 5)


def test_the_last_records_are_found_before_many_that_were_aborted(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("t").append_many([b"%d" % number for number in range(20)])
        with pytest.raises(KeyError), log.transaction() as txn:
            txn.append_many("t", [b"x" * 100] * 12_000)
            raise KeyError
    assert ok("consume", tmp_path, "t", "--last", 3).split() == ["17", "18", "19"]
    assert ok("consume", tmp_path, "t").split()[-1] == "19"
    assert ok("consume", tmp_path, "t", "--from", 20) == ""
    assert len(ok("consume", tmp_path, "t", "--group", "g").split()) == 20
    assert ok("consume", tmp_path, "t", "--group", "g") == ""


def test_a_group_reads_what_is_committed_and_has_no_lag_because_of_markers(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        assert ok("consume", tmp_path, "orders", "--group", "g") == "plain\ncommitted\n"
        producer.commit_transaction()
        assert ok_json("groups", "list", tmp_path)[0]["lag"] == 2
        assert ok("consume", tmp_path, "orders", "--group", "g") == "open\nafter\n"
        assert ok_json("groups", "list", tmp_path)[0]["lag"] == 0


def test_an_export_has_what_is_committed_unless_told_otherwise(tmp_path: Path) -> None:
    def exported(*more: object) -> list[str]:
        file = tmp_path / "out.jsonl"
        ok("export", tmp_path / "log", "orders", file, "--overwrite", *more)
        return [json.loads(line)["value"] for line in file.read_text().splitlines()]

    with undecided(tmp_path / "log"):
        assert exported() == ["plain", "committed"]
        assert exported(*UNCOMMITTED) == ["plain", "committed", "aborted", "open", "after"]
        assert exported("--from", 5) == exported("--from", f"@{BEGAN + 3_000}") == []
        assert exported("--from", 5, *UNCOMMITTED) == ["open", "after"]
        assert exported("--to", 5, *UNCOMMITTED) == ["plain", "committed", "aborted"]


def test_records_are_counted_without_markers_and_without_what_is_aborted(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        rows = {one["topic"]: one["records"] for one in ok_json("topics", "list", tmp_path)}
        assert rows == {"orders": 2, "pay": 0}
        first = ok_json("topics", "describe", tmp_path, "orders")["partitions"][0]
        assert (first["records"], first["last_stable_offset"], first["high_watermark"]) == (2, 5, 7)
        producer.commit_transaction()
        assert ok_json("stats", tmp_path)["records"] == 5
        found = ok_json("verify", tmp_path, "orders")["partitions"][0]
        assert (found["batches"], found["records"]) == (8, 5)  # what is stored, with the markers


# --- other commands


def test_everything_but_an_open_transaction_is_trimmed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with undecided(path, "shared") as (_, producer):
        found = ok_json("trim", path, "orders", "--all", "--yes", "--shared", "--partition", 0)
        assert found["partitions"][0]["start_offset"] == 5
        ok("trim", path, "pay", "--before-time", "2100-01-01", "--yes", "--shared")
        producer.commit_transaction()
    assert ok("consume", path, "orders") == "open\nafter\n"
    assert ok("consume", path, "pay") == "open\n"


def test_top_shows_where_readers_stop_and_how_long_a_transaction_is_open(tmp_path: Path) -> None:
    with undecided(tmp_path):
        lines = ok("top", tmp_path, "--interval", 0.05).splitlines()
        assert lines[1].split()[:5] == ["orders", "0", "0", "7", "5"]
        assert lines[-1].startswith("1 open transaction, the oldest for ")
        found = ok_json("top", tmp_path, "--interval", 0.05)
        assert (found["transactions"]["open"], found["partitions"][0]["last_stable_offset"]) == (1, 5)


def test_top_counts_records_but_not_markers(tmp_path: Path) -> None:
    seconds = iter(range(9))
    with commitlog.open(tmp_path) as log:
        topic = log.create_topic("t")
        log.commit_offsets("g", {commitlog.TopicPartition("t", 0): 0})
        watcher = Watcher(log, lambda: float(next(seconds)))
        watcher.look()
        for _ in range(5):
            with log.transaction() as txn:
                txn.append("t", b"x")
        log.commit_offsets("g", {commitlog.TopicPartition("t", 0): 10})
        view = watcher.look()
        assert topic.partition(0).next_offset == 10
    assert view.partitions[0].records_per_second == view.groups[0].records_per_second == 5.0


# --- dump


def test_markers_are_dumped_with_what_they_decide(tmp_path: Path) -> None:
    with undecided(tmp_path) as (log, _):
        (known,) = log.transactions()
        found = dumped(tmp_path / "orders-0" / f"{0:020d}.log", "--records")
    assert [one["kind"] for one in found] == [
        "batch", "record", "batch", "record", "marker", "batch", "record", "marker",
        "batch", "record", "batch", "record",
    ]  # fmt: skip
    commit, abort = (one for one in found if one["kind"] == "marker")
    assert (commit["offset"], commit["decision"], commit["first_offset"]) == (2, "commit", 1)
    assert (abort["offset"], abort["decision"], abort["first_offset"]) == (4, "abort", 3)
    assert (abort["producer_id"], abort["producer_epoch"]) == (known.producer_id, 1)
    assert [one["transactional"] for one in found if one["kind"] == "batch"] == [
        False, True, True, True, False
    ]  # fmt: skip
    lines = ok("dump", tmp_path / "orders-0" / f"{0:020d}.log").splitlines()
    assert lines[3].startswith("MARKER offset: 2 decision: commit producer_id: ")


def test_the_state_page_tells_what_is_undecided(tmp_path: Path) -> None:
    with undecided(tmp_path) as (_, producer):
        state, _ = dumped(tmp_path / "orders-0" / "state")
        assert (state["has_transactions"], state["undecided_offset"], state["aborts"]) == (True, 5, 1)
        assert (state["last_stable_offset"], state["high_watermark"]) == (5, 7)
        producer.commit_transaction()
        state, _ = dumped(tmp_path / "orders-0" / "state")
        assert (state["undecided_offset"], state["last_stable_offset"]) == (None, 8)


@pytest.mark.parametrize("sealed", [True, False])
def test_the_list_of_what_is_aborted_is_dumped(tmp_path: Path, sealed: bool) -> None:
    with undecided(tmp_path) as (log, _):
        (known,) = log.transactions()
        if sealed:
            log.topic("orders").partition(0).roll()
        path = tmp_path / "orders-0" / f"{0:020d}.txnindex"
        (found,) = dumped(path)
        assert (found["kind"], found["producer_id"]) == ("aborted", known.producer_id)
        assert (found["first_offset"], found["marker_offset"]) == (3, 4)


def test_a_list_of_what_is_aborted_that_is_damaged_says_so(tmp_path: Path) -> None:
    with undecided(tmp_path) as (log, _):
        log.topic("orders").partition(0).roll()
    path = tmp_path / "orders-0" / f"{0:020d}.txnindex"
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    assert "DAMAGE reason: the list is not known to be complete" in call("dump", path).stdout
    path.with_suffix(".log").unlink()
    assert call("dump", path).exit_code == 1


def test_a_snapshot_tells_which_transactions_are_open(tmp_path: Path) -> None:
    with undecided(tmp_path) as (log, _):
        (known,) = log.transactions()
        log.topic("orders").partition(0).roll()
        path = tmp_path / "orders-0" / f"{7:020d}.snapshot"
        whole, transaction = dumped(path)
        assert (whole["kind"], whole["next_offset"], whole["producers"]) == ("snapshot", 7, 1)
        assert (transaction["kind"], transaction["producer_id"]) == ("transaction", known.producer_id)
        assert (transaction["epoch"], transaction["first_offset"]) == (2, 5)
        assert ok("dump", path).splitlines()[2].startswith("OPEN producer_id: ")
    path.write_bytes(b"nonsense")
    assert call("dump", path).exit_code == 1


def test_nothing_is_read_of_a_state_log_for_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[int] = []
    real = Coordinator.describe_all
    monkeypatch.setattr(Coordinator, "describe_all", lambda self: described.append(1) or real(self))
    with undecided(tmp_path) as (log, _):
        assert log.metrics().transactions.open == 1
    assert described == []
