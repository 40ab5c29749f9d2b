"""`commitlog export` and `commitlog import`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import names, wait_until

import commitlog
from cli.rig import call, environment, ok, ok_json, on_terminal, piped, started
from commitlog import Record

FILES = ["all.parquet", "all.arrow", "all.csv", "all.jsonl"]
AWKWARD = [
    (1_000, b"key", b"value", ()),
    (1_001, None, b"no key", ()),
    (1_002, b"", b"", (("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"\xff"))),
    (1_003, b"tombstone", None, ()),
    (1_004, b"\xff\x00binary", b"\x80" * 100, (("bin", b"\xfe"),)),
    (1_005, b'quote"s, commas', b"two\nlines\r\nand a \r\ttab", ()),
    (1_006, "ünïcödé \u2028 \U0001f600".encode(), b"base64:aGVsbG8=", (("näme", "wért".encode()),)),
    (1_007, b" spaces ", b"\\N", ()),
    (1_007, b"null", b"null", ()),
    (1_000, b"[]", b'{"a": [1, 2]}', ()),
]


def fill(
    path: Path, rows: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
) -> None:
    with commitlog.open(path) as log:
        topic = log.create_topic("t", partitions=2)
        for number, (timestamp, key, value, headers) in enumerate(rows):
            partition = topic.partition(number % 2)
            partition.append(value, key=key, headers=headers, timestamp=timestamp)


def contents(path: Path) -> list[list[Record]]:
    with commitlog.open(path, mode="r") as log:
        return [list(partition.records()) for partition in log.topic("t").partitions]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A log with records that are hard to write down."""
    fill(tmp_path / "full", AWKWARD)
    return tmp_path / "full"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    fill(tmp_path / "empty", [])
    return tmp_path / "empty"


@pytest.mark.parametrize("name", FILES)
def test_what_was_exported_is_imported_as_it_was(full: Path, empty: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    done = ok_json("export", full, "t", file)
    assert done["records"] == len(AWKWARD)
    assert done["partitions"][1] == {"partition": 1, "start_offset": 0, "end_offset": 5}
    assert ok_json("import", empty, "t", file)["records"] == len(AWKWARD)
    assert contents(empty) == contents(full)


@pytest.mark.parametrize("name", FILES)
def test_many_records_and_a_topic_without_any(tmp_path: Path, empty: Path, name: str) -> None:
    file = tmp_path / name
    assert ok_json("export", empty, "t", file)["records"] == 0
    assert ok_json("import", empty, "t", file)["records"] == 0
    with commitlog.open(empty) as log:
        log.topic("t").append_many([b"%d" % number for number in range(50_000)])
    ok("export", empty, "t", file, "--overwrite")
    fill(tmp_path / "other", [])
    assert ok_json("import", tmp_path / "other", "t", file)["records"] == 50_000
    assert contents(tmp_path / "other") == contents(empty)


def test_columns_of_a_parquet_file_have_types(full: Path, tmp_path: Path) -> None:
    ok("export", full, "t", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.schema.names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert table.schema.field("value").type == pa.binary()
    assert table.column("offset").to_pylist() == [0, 1, 2, 3, 4] * 2


def test_partitions_offsets_and_times_are_chosen(full: Path, tmp_path: Path) -> None:
    def exported(*options: object) -> list[tuple[int, int]]:
        file = tmp_path / "some.parquet"
        ok("export", full, "t", file, "--overwrite", *options)
        rows = pq.read_table(file).select(["partition", "offset"]).to_pylist()
        return [(row["partition"], row["offset"]) for row in rows]

    assert exported("-p", 1) == [(1, offset) for offset in range(5)]
    assert exported("-p", 1, "-p", 0, "--to", 1) == [(0, 0), (1, 0)]
    assert exported("--from", 4, "--to", 100) == [(0, 4), (1, 4)]
    assert exported("--from", 100) == []
    assert exported("--from", 3, "--to", 2) == []
    assert exported("--from", "@1006") == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert exported("--to", "@1002") == [(0, 0), (1, 0)]
    assert exported("--from", "1970-01-01T00:00:01.004", "--to", "1970-01-01T00:00:01.006Z") == [
        (0, 2), (1, 2),
    ]  # fmt: skip
    assert call("export", full, "t", tmp_path / "x.csv", "-p", 7).exit_code == 1


def test_a_log_that_is_being_written_is_exported_and_not_imported_to(full: Path, tmp_path: Path) -> None:
    with commitlog.open(full) as log:
        log.topic("t").partition(0).append(b"one more")
        assert ok_json("export", full, "t", tmp_path / "x.csv")["records"] == len(AWKWARD) + 1
        refused = call("import", full, "t", tmp_path / "x.csv")
    assert refused.exit_code == 1
    assert str(os.getpid()) in refused.stderr


def test_a_file_that_is_there_is_replaced_only_if_asked(full: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("mine")
    refused = call("export", full, "t", file)
    assert (refused.exit_code, file.read_text()) == (1, "mine")
    assert "--overwrite" in refused.stderr
    ok("export", full, "t", file, "--overwrite")
    assert file.read_text() != "mine"


def test_a_name_that_tells_no_format_needs_one(full: Path, tmp_path: Path) -> None:
    assert call("export", full, "t", tmp_path / "x.txt").exit_code == 2
    ok("export", full, "t", tmp_path / "x.txt", "--format", "csv")
    assert (tmp_path / "x.txt").read_text().startswith('"partition","offset"')


def test_an_export_that_is_killed_leaves_no_file_of_its_name(tmp_path: Path, empty: Path) -> None:
    with commitlog.open(empty) as log:
        log.topic("t").partition(0).append_many([b"x" * 100] * 300_000)
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = started("export", empty, "t", tmp_path / "big.jsonl")
        wait_until(lambda: any(name.endswith(".partial") for name in names(tmp_path)))
        process.send_signal(number)
        process.wait()
        assert "big.jsonl" not in names(tmp_path)
        left = [name for name in names(tmp_path) if name.endswith(".partial")]
        assert bool(left) == (number == signal.SIGKILL)


def test_damage_leaves_no_file(full: Path, tmp_path: Path) -> None:
    with open(full / "t-1" / f"{0:020}.log", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff\xff")
    failed = call("export", full, "t", tmp_path / "x.parquet")
    assert failed.exit_code == 1
    assert "Traceback" not in failed.output
    assert names(tmp_path) == ["full"]


@pytest.mark.parametrize(
    ("name", "text", "where", "why"),
    [
        ("x.csv", 'key,value\n"a","1\n2"\n\nb,2\nc\nd,4\n', "line 6", "1 fields instead of 2"),
        ("x.csv", "timestamp,value\n1,a\n2,b\nsoon,c\n4,d\n", "line 4", "timestamp: 'soon' is neither"),
        ("x.csv", "value_base64,value\n,a\nYQ==,\nY,\n", "line 4", "value_base64: "),
        ("x.csv", "value,partition\na,0\nb,1\nc,2\n", "line 4", "there is no partition 2: the topic has 2"),
        ("x.csv", 'value,headers\na,\nb,"[]"\nc,5\n', "line 4", "headers: "),
        ("x.jsonl", '{"value": "a"}\n\n{"value": "b"}\n{"value": \n{"value": "d"}\n', "line 4", "Expecting"),
        ("x.jsonl", '{"value": "a"}\n{"value": "b"}\n{"valu": "c"}\n', "line 3", "unknown field valu"),
        ("x.jsonl", '{"value": "a"}\n{"value": "b"}\n{"value": "c", "partition": 9}\n', "line 3", "9"),
        (
            "x.jsonl",
            '{"value": "a"}\n{"value": "b"}\n{"value": "c", "timestamp": -1}\n',
            "line 3",
            "negative",
        ),
        ("x.jsonl", '{"value": "a"}\n{"value": "b"}\n{"value": "c", "timestamp": "x"}\n', "line 3", "'x' is"),
    ],
)
def test_an_import_stops_at_a_bad_row_and_says_where(
    empty: Path, tmp_path: Path, name: str, text: str, where: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    stopped = call("import", empty, "t", tmp_path / name)
    assert stopped.exit_code == 1
    assert f"{name}, {where}: " in stopped.stderr
    assert why in stopped.stderr
    assert "the 2 records before it are imported, continue after it with --skip 3" in stopped.stderr
    assert sum(map(len, contents(empty))) == 2
    rest = text.count('"d"') + text.count("d,4") + text.count("4,d")
    assert ok_json("import", empty, "t", tmp_path / name, "--skip", 3)["records"] == rest


def test_skipping_goes_by_the_rows_of_the_file_however_many_are_bad(empty: Path, tmp_path: Path) -> None:
    lines = [f'"{number}","a\nb"' for number in range(30_000)]
    for number in (5, 20_000, 20_001, 29_999):
        lines[number] = f"{number},too,many"
    (tmp_path / "x.csv").write_text("\n".join(["key,value", *lines, ""]))
    skip = imported = 0
    for bad in (5, 20_000, 20_001, 29_999):
        stopped = call("import", empty, "t", tmp_path / "x.csv", "-p", 0, "--skip", skip)
        assert f"line {2 * bad + 2 - bad_before(bad)}: 3 fields instead of 2" in stopped.stderr
        assert f"the {bad - skip} records before it" in stopped.stderr
        imported, skip = imported + bad - skip, bad + 1
    assert ok_json("import", empty, "t", tmp_path / "x.csv", "-p", 0, "--skip", skip)["records"] == 0
    keys = [record.key for record in contents(empty)[0]]
    assert keys == [b"%d" % number for number in range(30_000) if number not in (5, 20_000, 20_001, 29_999)]
    assert len(keys) == imported


def bad_before(bad: int) -> int:
    """How many bad rows, each on one line and not on two, stand before this one."""
    return sum(number < bad for number in (5, 20_000, 20_001, 29_999))


def test_a_record_that_is_too_large_is_found_behind_many(empty: Path, tmp_path: Path) -> None:
    with commitlog.open(empty) as log:
        log.topic("t").alter_config(max_message_bytes=1_000)
    values = [b"x"] * 20_000
    values[17_000], values[18_000] = b"x" * 2_000, b"x" * 3_000
    table = pa.table({"value": pa.array(values, pa.binary())})
    pq.write_table(table, tmp_path / "x.parquet")
    stopped = call("import", empty, "t", tmp_path / "x.parquet")
    assert "x.parquet, row 17001: " in stopped.stderr
    assert "row 17001: it has 2000 bytes, max_message_bytes is 1000;" in stopped.stderr
    assert sum(map(len, contents(empty))) == 17_000


def test_partitions_are_those_of_the_file_or_of_keys_or_one(full: Path, empty: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    ok("export", full, "t", file)
    ok("import", empty, "t", file, "-p", 1)
    assert [len(records) for records in contents(empty)] == [0, len(AWKWARD)]
    ok("import", empty, "t", file, "--by-key")
    with commitlog.open(empty, mode="r") as log:
        expected = log.topic("t").partition_numbers(pa.array([b"key"], pa.binary()))[0]
    assert [record.key for record in contents(empty)[expected]].count(b"key") == (2 if expected == 1 else 1)
    assert call("import", empty, "t", file, "--by-key", "-p", 1).exit_code == 2


def test_columns_that_no_record_has_are_refused(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("value,colour\na,red\n")
    refused = call("import", empty, "t", tmp_path / "x.csv")
    assert refused.exit_code == 1
    assert "x.csv has a column 'colour'; columns may be" in refused.stderr
    (tmp_path / "y.csv").write_text("key\na\n")
    assert "y.csv has no column 'value'" in call("import", empty, "t", tmp_path / "y.csv").stderr


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_one_sentence(empty: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00\xff nonsense")
    refused = call("import", empty, "t", tmp_path / name)
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
    assert name in refused.stderr


def test_a_plain_csv_file_needs_no_more_than_values(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('key,value\nalice,apples\n,\nbob,""\n')
    ok("import", empty, "t", tmp_path / "x.csv", "-p", 0)
    found = [(record.key, record.value) for record in contents(empty)[0]]
    assert found == [(b"alice", b"apples"), (None, None), (b"bob", b"")]


def test_an_arrow_stream_does_as_well_as_a_file(empty: Path, tmp_path: Path) -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b"])})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    assert ok_json("import", empty, "t", tmp_path / "x.arrow")["records"] == 2


def test_a_terminal_sees_progress_and_a_pipe_does_not(empty: Path, tmp_path: Path) -> None:
    with commitlog.open(empty) as log:
        log.topic("t").partition(0).append_many([b"x" * 50] * 20_000)
    code, seen = on_terminal("export", empty, "t", tmp_path / "a.jsonl")
    assert code == 0
    assert "exporting" in seen
    assert "exported 20000 records" in seen
    code, seen = on_terminal("import", empty, "t", tmp_path / "a.jsonl")
    assert (code, "importing" in seen) == (0, True)
    done = piped("export", empty, "t", tmp_path / "b.csv")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"exported 40000 records")


def test_without_pyarrow_one_is_told_what_to_install(full: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        f"sys.argv = ['commitlog', 'export', {str(full)!r}, 't', {str(tmp_path / 'x.csv')!r}]\n"
        "from commitlog.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 1
    assert "pip install pyarrow" in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_stays_flat(empty: Path, tmp_path: Path) -> None:
    """The whole process of an export, and of an import, of 500 MB never has as much in memory."""
    pool = os.urandom(1 << 20)
    values = [pool[97 * number : 97 * number + 1_000] for number in range(10_000)]
    with commitlog.open(empty) as log:
        for _ in range(50):
            log.topic("t").partition(0).append_many(values)
    program = (
        "import re, sys\n"
        "from commitlog.cli import main\n"
        "sys.argv = ['commitlog', *sys.argv[1:]]\n"
        "assert main() == 0\n"
        # not ru_maxrss, which begins with what its parent has
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])"
    )
    fill(tmp_path / "other", [])
    file = tmp_path / "x.parquet"
    for arguments in (["export", empty, "t", file], ["import", tmp_path / "other", "t", file]):
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            capture_output=True, text=True, check=True, env=environment(),
        )  # fmt: skip
        assert int(done.stdout.split()[-1]) < 400_000, done.stdout  # KiB
