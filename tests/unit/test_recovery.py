from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from helpers import contents, copy_as_if_killed, encoded, fill, flip, names, stored, tree
from soak import SOAK, count

import commitlog
from commitlog import CommitLog, CorruptionError, LogConfig, Partition, Record, Segment
from commitlog.errors import TornTailError

CONFIG = {"segment_bytes": 1_000, "index_interval_bytes": 200, "flush_ms": -1}


def partition_of(log: CommitLog) -> Partition:
    return log.topic("t").partition(0)


def active_file(path: Path) -> Path:
    return path / "t-0" / names(path / "t-0", ".log")[-1]


@pytest.fixture
def filled(log: CommitLog) -> list[Record]:
    """Thirty records in several segments of topic t, nothing synced."""
    return fill(log.create_topic("t", config=CONFIG).partition(0), 30)


@pytest.fixture
def killed(log: CommitLog, filled: list[Record], tmp_path: Path) -> Path:
    """What a writer killed after those records leaves."""
    return copy_as_if_killed(log, tmp_path / "killed")


# --- clean and unclean


def test_a_cleanly_closed_log_is_opened_without_reading_it(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", config=CONFIG).partition(0), 30)
    with commitlog.open(log_path) as log:
        (report,) = log.recovery
        assert report.partition == "t-0"
        assert report.clean
        assert (report.segments_checked, report.bytes_checked, report.bytes_cut) == (0, 0, 0)
        assert report.seconds >= 0


def test_the_clean_marker_is_gone_while_the_log_is_open(log_path: Path) -> None:
    with commitlog.open(log_path):
        assert "clean-shutdown" not in names(log_path)
    assert "clean-shutdown" in names(log_path)
    with commitlog.open(log_path):
        assert "clean-shutdown" not in names(log_path)


def test_after_an_unclean_stop_everything_written_is_there(killed: Path, filled: list[Record]) -> None:
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled
        (report,) = log.recovery
        assert not report.clean
        assert report.bytes_cut == 0
        assert report.segments_checked == len(partition_of(log).segments)
        assert report.bytes_checked == partition_of(log).size_bytes
        assert partition_of(log).append(b"next") == 30


def test_only_what_lies_above_the_recovery_point_is_checked(log: CommitLog, tmp_path: Path) -> None:
    partition = log.create_topic("t", config=CONFIG).partition(0)
    fill(partition, 30)
    partition.sync()
    fill(partition, 3)
    with commitlog.open(copy_as_if_killed(log, tmp_path / "copy")) as again:
        (report,) = again.recovery
        assert 0 < report.bytes_checked < 1_500
        assert report.segments_checked <= 2
        assert partition_of(again).next_offset == 33


def test_an_empty_topic_is_recovered_as_an_empty_topic(log: CommitLog, tmp_path: Path) -> None:
    log.create_topic("t")
    with commitlog.open(copy_as_if_killed(log, tmp_path / "copy")) as again:
        assert partition_of(again).next_offset == 0
        assert partition_of(again).append(b"a") == 0


# --- torn tails


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize(
    "garbage", [b"\x01", b"torn" * 3, bytes(range(64)), b"\xff" * 79, b"x" * 200, b"y" * 5_000]
)
def test_a_torn_tail_is_cut_counted_and_reported(
    log: CommitLog, tmp_path: Path, garbage: bytes, synced: bool
) -> None:
    partition = log.create_topic("t", config=CONFIG).partition(0)
    whole = fill(partition, 10)
    if synced:
        partition.sync()
    path = copy_as_if_killed(log, tmp_path / "copy")
    with open(active_file(path), "ab") as file:
        file.write(garbage)
    with commitlog.open(path) as again:
        assert contents(partition_of(again)) == whole
        assert again.recovery[0].bytes_cut == len(garbage)
        assert partition_of(again).append(b"next") == 10


def test_records_appended_after_a_torn_tail_survive_the_next_open(killed: Path, filled: list[Record]) -> None:
    with open(active_file(killed), "ab") as file:
        file.write(b"torn tail of an unfinished append")
    with commitlog.open(killed) as log:
        partition_of(log).append(b"after", timestamp=5, sync=True)
        copy_as_if_killed(log, killed.with_name("again"))
    for path in (killed, killed.with_name("again")):
        with commitlog.open(path) as log:
            assert contents(partition_of(log)) == [*filled, Record(30, 5, None, b"after")]


def test_garbage_from_the_middle_of_a_batch_on_leaves_exactly_the_batches_before(
    log: CommitLog, tmp_path: Path
) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    whole = fill(partition, 12)
    positions = [position for position, _ in partition.segments[0].headers()]
    for number, position in enumerate(positions):
        path = copy_as_if_killed(log, tmp_path / f"copy{number}")
        size = os.path.getsize(active_file(path))
        with open(active_file(path), "r+b") as file:
            file.seek(position + 40)
            file.write(random.Random(number).randbytes(size - position - 40))
        with commitlog.open(path) as again:
            assert contents(partition_of(again)) == whole[:number]
            assert partition_of(again).next_offset == number
            assert again.recovery[0].bytes_cut == size - position


def test_segments_after_a_tear_are_dropped_for_their_offsets_would_leave_a_gap(
    killed: Path, filled: list[Record]
) -> None:
    logs = names(killed / "t-0", ".log")
    victim = killed / "t-0" / logs[1]
    flip(victim, 75)
    with commitlog.open(killed) as log:
        first_lost = int(logs[1].removesuffix(".log"))
        assert contents(partition_of(log)) == filled[:first_lost]
        assert log.recovery[0].segments_dropped == len(logs) - 2
        assert partition_of(log).append(b"next") == first_lost
        left = set(names(killed / "t-0"))
        assert not left & set(logs[2:])


def test_a_missing_segment_above_the_recovery_point_is_a_tear(killed: Path, filled: list[Record]) -> None:
    logs = names(killed / "t-0", ".log")
    (killed / "t-0" / logs[1]).unlink()
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled[: int(logs[1].removesuffix(".log"))]


@pytest.mark.parametrize("garbage", [b"\x01", b"x" * 200])
def test_in_mode_absolute_a_torn_tail_is_refused_and_nothing_is_touched(
    killed: Path, filled: list[Record], garbage: bytes
) -> None:
    with open(active_file(killed), "ab") as file:
        file.write(garbage)
    before = {name: size for name, size in tree(killed).items() if not name.endswith(".lock")}
    with pytest.raises(TornTailError) as caught:
        commitlog.open(killed, config=LogConfig(recovery_mode="absolute"))
    assert caught.value.args[0] == str(active_file(killed))
    assert caught.value.args[2] == len(garbage)
    assert {name: size for name, size in tree(killed).items() if not name.endswith(".lock")} == before
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled


def test_in_mode_absolute_an_untorn_log_is_opened(killed: Path, filled: list[Record]) -> None:
    with commitlog.open(killed, config=LogConfig(recovery_mode="absolute")) as log:
        assert contents(partition_of(log)) == filled


def test_reserved_blocks_are_no_torn_tail(log: CommitLog, tmp_path: Path) -> None:
    config = {"preallocate": True, "segment_bytes": 4_000, "flush_ms": -1}
    for synced in (False, True):
        partition = log.create_topic(f"t{synced}", config=config).partition(0)
        fill(partition, 60)
        if synced:
            partition.sync()
    path = copy_as_if_killed(log, tmp_path / "copy")
    with commitlog.open(path, config=LogConfig(recovery_mode="absolute")) as again:
        for topic in ("tFalse", "tTrue"):
            partition = again.topic(topic).partition(0)
            assert [record.offset for record in partition.records()] == list(range(60))
            assert partition.append(b"next") == 60
        assert [report.bytes_cut for report in again.recovery] == [0, 0]


# --- damage a crash cannot explain


@pytest.fixture
def synced(log: CommitLog, tmp_path: Path) -> Path:
    """What a writer killed after thirty synced and three other records leaves."""
    partition = log.create_topic("t", config=CONFIG).partition(0)
    fill(partition, 30)
    partition.sync()
    fill(partition, 3)
    return copy_as_if_killed(log, tmp_path / "synced")


@pytest.mark.parametrize("mode", ["cut", "absolute"])
def test_a_log_that_ends_below_what_was_synced_is_refused_and_nothing_is_touched(
    synced: Path, mode: str
) -> None:
    active = active_file(synced)
    os.truncate(active, 0)
    before = {name: size for name, size in tree(synced).items() if not name.endswith(".lock")}
    with pytest.raises(CorruptionError) as caught:
        commitlog.open(synced, config=LogConfig(recovery_mode=mode))  # type: ignore[arg-type]
    assert caught.value.path == str(active)
    assert {name: size for name, size in tree(synced).items() if not name.endswith(".lock")} == before
    with pytest.raises(CorruptionError):
        commitlog.open(synced, mode="r").topic("t")


def test_damage_below_the_recovery_point_is_met_by_who_reads_it_not_cut(synced: Path) -> None:
    first = synced / "t-0" / names(synced / "t-0", ".log")[0]
    size = os.path.getsize(first)
    flip(first, 75)
    with commitlog.open(synced) as log:
        partition = partition_of(log)
        assert partition.next_offset == 33
        assert os.path.getsize(first) == size
        with pytest.raises(CorruptionError):
            contents(partition)
        assert not partition.verify().ok


def test_salvage_keeps_what_is_readable_around_damage(synced: Path) -> None:
    logs = names(synced / "t-0", ".log")
    active = active_file(synced)
    base = int(logs[-1].removesuffix(".log"))
    headers = list(Segment.open(active).headers())
    flip(active, headers[1][0] + 75)
    lost = base + 1
    # a power cut also lost the recovery point, so everything is looked at
    (synced / "t-0" / "state").unlink()
    with commitlog.open(synced, config=LogConfig(recovery_mode="salvage")) as log:
        partition = partition_of(log)
        assert [record.offset for record in partition.records()] == [one for one in range(33) if one != lost]
        (salvage,) = log.recovery[0].salvaged
        assert salvage.lost == ((lost, lost + 1),)
        assert salvage.path == str(active)
        assert os.path.exists(salvage.kept_as)
        assert partition.append(b"next") == 33
        assert partition.verify().ok


def test_salvage_never_gives_an_offset_out_twice(synced: Path) -> None:
    os.truncate(active_file(synced), 0)
    with commitlog.open(synced, config=LogConfig(recovery_mode="salvage")) as log:
        assert partition_of(log).next_offset >= 30
        assert partition_of(log).append(b"next") >= 30


def test_salvage_of_a_torn_tail_keeps_the_segments_that_follow(killed: Path, filled: list[Record]) -> None:
    logs = names(killed / "t-0", ".log")
    flip(killed / "t-0" / logs[1], 75)
    lost = int(logs[1].removesuffix(".log"))
    with commitlog.open(killed, config=LogConfig(recovery_mode="salvage")) as log:
        assert contents(partition_of(log)) == [record for record in filled if record.offset != lost]
        assert partition_of(log).next_offset == 30


# --- files that are derived


def test_a_log_without_indexes_gets_them_back(killed: Path, filled: list[Record]) -> None:
    directory = killed / "t-0"
    gone = names(directory, "index")
    for name in gone:
        (directory / name).unlink()
    with commitlog.open(killed) as log:
        assert set(gone) <= set(names(directory))
        partition = partition_of(log)
        assert [partition.get(offset) for offset in range(30)] == filled
        assert [partition.offset_for_timestamp(record.timestamp) for record in filled] == list(range(30))
        assert log.recovery[0].indexes_rebuilt >= len(gone) - 2
        assert partition.verify().ok


def test_a_missing_index_is_rebuilt_after_a_clean_close_too(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        whole = fill(log.create_topic("t", config=CONFIG).partition(0), 30)
    directory = log_path / "t-0"
    for name in names(directory, "index"):
        (directory / name).unlink()
    with commitlog.open(log_path) as log:
        partition = partition_of(log)
        assert [partition.get(offset) for offset in range(30)] == whole
        assert [partition.offset_for_timestamp(record.timestamp) for record in whole] == list(range(30))
        assert log.recovery[0].clean
        assert log.recovery[0].indexes_rebuilt >= len(partition.segments) - 1


def test_an_index_without_a_log_is_removed(killed: Path, filled: list[Record]) -> None:
    for suffix in ("index", "timeindex"):
        (killed / "t-0" / f"00000000000000009999.{suffix}").write_bytes(bytes(4_096))
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled
        assert not [name for name in names(killed / "t-0") if "9999" in name]


@pytest.mark.parametrize("leftover", ["00000000000000000000.log.tmp", "00000000000000000000.index.deleted"])
def test_what_an_interrupted_change_left_is_removed(
    killed: Path, filled: list[Record], leftover: str
) -> None:
    (killed / "t-0" / leftover).write_bytes(b"leftover")
    with commitlog.open(killed) as log:
        assert leftover not in names(killed / "t-0")
        assert contents(partition_of(log)) == filled


def test_a_lost_state_page_is_made_anew(killed: Path, filled: list[Record]) -> None:
    (killed / "t-0" / "state").unlink()
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled
        assert partition_of(log).append(b"next") == 30
    with commitlog.open(killed, mode="r") as reader:
        assert partition_of(reader).next_offset == 31


@pytest.mark.parametrize("junk", [b"", b"\xff" * 4_096, bytes(4_096), b"short"])
def test_a_state_page_of_nonsense_is_made_anew(killed: Path, filled: list[Record], junk: bytes) -> None:
    (killed / "t-0" / "state").write_bytes(junk)
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled


def test_files_that_are_not_ours_are_left_alone(killed: Path, filled: list[Record]) -> None:
    for name in ("notes.log", "README", "123.log", "00000000000000000000.log.bak"):
        (killed / "t-0" / name).write_bytes(b"mine")
    with commitlog.open(killed) as log:
        assert contents(partition_of(log)) == filled
    for name in ("notes.log", "README", "123.log", "00000000000000000000.log.bak"):
        assert (killed / "t-0" / name).read_bytes() == b"mine"


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Spoil an index file in one of the ways files are spoiled."""
    spoiled = bytearray(raw)
    way = rng.randrange(5)
    start = rng.randrange(min(500, len(raw)))
    if way == 0:
        spoiled[:] = rng.randbytes(len(raw))
    elif way == 1:
        for _ in range(5):
            spoiled[rng.randrange(500)] = rng.randrange(256)
    elif way == 2:
        del spoiled[start:]
    elif way == 3:
        spoiled[start : start + 100] = bytes(100)
    else:
        words = [spoiled[place : place + 8] for place in range(0, 512, 8)]
        rng.shuffle(words)
        spoiled[:512] = b"".join(words)
    return bytes(spoiled)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("segment_bytes", [2_000, 100_000])
def test_damaged_indexes_never_change_what_is_found(
    log_path: Path, tmp_path: Path, segment_bytes: int, clean: bool
) -> None:
    config = {**CONFIG, "segment_bytes": segment_bytes, "index_interval_bytes": 0}
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=config).partition(0)
        stamps = [1_000 + (number * 37) % 101 for number in range(60)]
        for stamp in stamps:
            partition.append(b"x" * 50, timestamp=stamp)
        whole = contents(partition)
    for seed in range(300 if SOAK else 15):
        rng = random.Random(seed)
        copy = tmp_path / "copy"
        shutil.copytree(log_path, copy)
        for name in names(copy / "t-0", "index"):
            file = copy / "t-0" / name
            file.write_bytes(damaged(file.read_bytes(), rng))
        if not clean:
            (copy / "clean-shutdown").unlink()
        count("damaged logs opened")
        for mode in ("r", "w", "r"):
            with commitlog.open(copy, mode=mode) as log:
                partition = partition_of(log)
                assert [partition.get(offset) for offset in range(60)] == whole, seed
                for wanted in range(995, 1_105, 3):
                    expected = next((place for place, stamp in enumerate(stamps) if stamp >= wanted), None)
                    assert partition.offset_for_timestamp(wanted) == expected, (seed, wanted)
                if mode == "w":
                    assert partition.append(b"more", timestamp=5_000) == 60
                    assert partition.offset_for_timestamp(4_000) == 60
                    partition.truncate_from(60)
        shutil.rmtree(copy)


def test_a_trim_that_a_crash_interrupted_is_finished_at_open(log: CommitLog, tmp_path: Path) -> None:
    partition = log.create_topic("t", config=CONFIG).partition(0)
    whole = fill(partition, 30)
    partition.sync()
    before = copy_as_if_killed(log, tmp_path / "before")
    partition.trim_before(20)
    shutil.copy(Path(partition.path) / "state", before / "t-0" / "state")
    with commitlog.open(before) as again:
        partition = partition_of(again)
        assert (partition.start_offset, partition.next_offset) == (20, 30)
        assert contents(partition) == whole[20:]
        bases = [int(name.removesuffix(".log")) for name in names(partition.path, ".log")]
        assert len(bases) == 1 or bases[1] > 20


def test_an_empty_segment_that_a_crash_left_after_the_active_one_is_gone_on_in(
    killed: Path, filled: list[Record]
) -> None:
    (killed / "t-0" / f"{30:020d}.log").touch()
    with commitlog.open(killed) as log:
        partition = partition_of(log)
        assert contents(partition) == filled
        assert partition.append(b"next") == 30
        assert partition.segments[-1].base_offset == 30


def test_an_unclean_log_can_be_recovered_any_number_of_times(killed: Path, filled: list[Record]) -> None:
    for number in range(4):
        copy = killed.with_name(f"again{number}")
        with commitlog.open(killed) as log:
            assert contents(partition_of(log)) == filled
            copy_as_if_killed(log, copy)
        killed = copy


# --- headers that rot below the recovery point


ROTTEN = [(place, bit) for place in (0, 1, 2, 4, 7, 16, 20, 21, 23, 56, 57, 59) for bit in (0, 1, 5, 7)]


@pytest.fixture(params=[4096, 256])
def all_synced(log: CommitLog, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, list[int]]:
    """What a writer killed after sixty synced and some other records leaves; and where batches start."""
    config = {"flush_ms": -1, "index_interval_bytes": request.param}
    partition = log.create_topic("t", config=config).partition(0)
    fill(partition, 60)
    partition.sync()
    fill(partition, 5)
    positions = [position for position, _ in partition.segments[0].headers()]
    return copy_as_if_killed(log, tmp_path / "killed"), positions


@pytest.mark.parametrize("number", [0, 30, 59])
def test_a_header_that_rots_below_what_was_synced_is_never_a_torn_tail(
    all_synced: tuple[Path, list[int]], number: int
) -> None:
    killed, positions = all_synced
    active = active_file(killed)
    whole = active.read_bytes()
    for place, bit in ROTTEN:
        flip(active, positions[number] + place, 1 << bit)
        rotten = active.read_bytes()
        for mode in ("r", "w"):
            found = []
            with pytest.raises(CorruptionError) as caught, commitlog.open(killed, mode=mode) as log:
                assert partition_of(log).next_offset == 65
                for record in partition_of(log).records():
                    found.append(record.offset)
            assert found in ([], list(range(number)))
            assert caught.value.path == str(active)
            assert active.read_bytes() == rotten, "nothing is cut"
        active.write_bytes(whole)


@pytest.mark.parametrize("number", [0, 30, 59])
def test_salvage_opens_whatever_header_rots_and_loses_only_its_batch(
    all_synced: tuple[Path, list[int]], number: int, tmp_path: Path
) -> None:
    killed, positions = all_synced
    for place, bit in ROTTEN[::5]:
        copy = tmp_path / "copy"
        shutil.copytree(killed, copy)
        flip(active_file(copy), positions[number] + place, 1 << bit)
        with commitlog.open(copy, config=LogConfig(recovery_mode="salvage")) as log:
            partition = partition_of(log)
            assert [record.offset for record in partition.records()] == [
                offset for offset in range(65) if offset != number
            ]
            assert partition.append(b"next") == 65
        shutil.rmtree(copy)


def test_a_torn_tail_behind_what_was_synced_is_still_cut(all_synced: tuple[Path, list[int]]) -> None:
    killed, positions = all_synced
    flip(active_file(killed), positions[62] + 3)
    with commitlog.open(killed) as log:
        assert partition_of(log).next_offset == 62
        assert [record.offset for record in partition_of(log).records()] == list(range(62))


def test_a_batch_beyond_the_last_offset_there_is_is_cut_like_a_tear(log: CommitLog, tmp_path: Path) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    last = 2**63 - 3
    partition.restart_at(last)
    assert [partition.append(b"x") for _ in range(2)] == [last, last + 1]
    path = copy_as_if_killed(log, tmp_path / "killed")
    with open(active_file(path), "ab") as file:
        file.write(stored(encoded([b"too far"]), last + 2))
    with commitlog.open(path) as again:
        assert partition_of(again).next_offset == last + 2
        assert [record.offset for record in partition_of(again).records()] == [last, last + 1]
