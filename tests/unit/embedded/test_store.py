"""The store: Sequences, groups, what a full disk refuses, what survives, and which files it will not touch."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.embedded.records import Record
from connector.embedded.room import Room
from connector.embedded.schema import APPLICATION_ID, FILE_NAME, QUEUE, VERSION, Unusable, entry_id
from connector.embedded.store import Commit, Store, StoredChannel, dense_runs
from tests.support.waiting import wait_until


class Disk:
    """A store whose commits are waited for by the test's thread, and opened again at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder)
        self.channels = {channel.name: channel for channel in self.store.load()}
        self.store.start(self._call)

    def _call(self, call: Callable[[], None]) -> None:
        call()

    def channel(self, name: str) -> StoredChannel:
        if name not in self.channels:
            self.channels[name] = StoredChannel(len(self.channels) + 1, QUEUE, name)
        return self.channels[name]

    def submit(self, commit: Commit) -> threading.Event:
        done = threading.Event()
        commit.done = done.set
        self.store.submit(commit)
        return done

    def append(self, name: str, *bodies: bytes) -> Commit:
        commit = Commit()
        commit.appends = [(self.channel(name), [Record(body, 1) for body in bodies])]
        assert self.submit(commit).wait(10)
        return commit

    def rows(self, query: str = "SELECT id, data FROM entry ORDER BY id") -> list[Any]:
        with sqlite3.connect(self.folder / FILE_NAME) as connection:
            rows = connection.execute(query).fetchall()
        connection.close()
        return rows

    def reopen(self) -> None:
        self.store.close()
        self.__init__(self.folder)  # type: ignore[misc]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.store.close()


def full(disk: Disk, pages: int = 0) -> None:
    """Let the database grow no further; 0 pages: not at all."""
    disk.store._writer.execute(f"PRAGMA max_page_count = {pages or 1}")


# ---- commits


def test_sequences_are_given_out_per_channel(disk: Disk) -> None:
    assert disk.append("a", b"1", b"2").firsts == [1]
    assert disk.append("b", b"3").firsts == [1]
    assert disk.append("a", b"4").firsts == [3]
    assert [(key & 0xFF, data) for key, data in disk.rows()] == [(1, b"1"), (2, b"2"), (3, b"4"), (1, b"3")]


def test_sequences_go_on_after_everything_was_settled_and_the_store_was_opened_again(disk: Disk) -> None:
    disk.append("a", b"1", b"2")
    disk.store.forget(1, [1, 2])
    disk.reopen()
    assert disk.rows() == []
    assert disk.append("a", b"3").firsts == [3]


def test_a_channel_hears_of_its_records_before_the_commit_is_done(disk: Disk) -> None:
    heard: list[object] = []
    channel = disk.channel("a")
    channel.on_stored = lambda first, records: heard.append((first, [record.data for record in records]))
    commit = Commit()
    commit.appends = [(channel, [Record(b"x", 1)]), (channel, [Record(b"y", 1)])]
    commit.done = lambda: heard.append("done")
    disk.store.submit(commit)
    wait_until(lambda: len(heard) == 3)
    assert heard == [(1, [b"x"]), (2, [b"y"]), "done"]


def test_what_waits_is_stored_as_one_group(disk: Disk) -> None:
    begun: list[str] = []
    disk.store._writer.set_trace_callback(begun.append)
    with disk.store._wake:  # the writer cannot look before all are there
        events = []
        for _ in range(20):
            commit = Commit()
            commit.appends = [(disk.channel("a"), [Record(b"x", 1)])]
            commit.done = (done := threading.Event()).set
            disk.store._commits.append(commit)
            events.append(done)
        disk.store._wake.notify()
    assert all(event.wait(10) for event in events)
    assert begun.count("COMMIT") == 1
    assert len(disk.rows()) == 20


def test_records_and_deletes_of_one_commit_go_together(disk: Disk) -> None:
    disk.append("a", b"old")
    commit = Commit()
    commit.appends = [(disk.channel("b"), [Record(b"new", 1)])]
    commit.deletes = [(1, [1])]
    assert disk.submit(commit).wait(10)
    assert [data for _, data in disk.rows()] == [b"new"]


def test_only_what_somebody_waits_for_is_synced(disk: Disk) -> None:
    disk.append("a", b"1", b"2")
    statements: list[str] = []
    disk.store._writer.set_trace_callback(statements.append)
    disk.store.forget(1, [1])
    wait_until(lambda: "COMMIT" in statements)
    assert "PRAGMA synchronous = NORMAL" in statements
    statements.clear()
    disk.append("a", b"3")
    assert "PRAGMA synchronous = FULL" in statements


def test_delays_are_kept_and_ended(disk: Disk) -> None:
    commit = Commit()
    commit.delays = [(1, 100, b"one"), (2, 50, b"two")]
    assert disk.submit(commit).wait(10)
    disk.reopen()
    assert sorted(disk.store.load_delays()) == [(50, 2), (100, 1)]
    assert disk.store.read_delayed(2) == b"two"
    ending = Commit()
    ending.undelays = [2]
    ending.appends = [(disk.channel("a"), [Record(b"two", 1)])]
    assert disk.submit(ending).wait(10)
    disk.reopen()
    assert disk.store.load_delays() == [(100, 1)]


# ---- reading


def test_reading_a_range_and_a_selection(disk: Disk) -> None:
    commit = Commit()
    commit.appends = [(disk.channel("a"), [Record(b"%d" % each, each, each, each * 10) for each in range(1, 30)])]
    assert disk.submit(commit).wait(10)
    assert [each.data for each in disk.store.read(1, range(3, 6)).values()] == [b"3", b"4", b"5"]
    some = disk.store.read(1, [2, 5, 29, 99])
    assert sorted(some) == [2, 5, 29]
    assert (some[5].timestamp_ns, some[5].receive_count, some[5].expires_at_ns) == (5, 5, 50)
    assert disk.store.first_at(1, 7) == 7
    assert disk.store.first_at(1, 1000) == 0


def test_what_is_kept_up_to_a_mark(disk: Disk) -> None:
    disk.append("a", *[b"x"] * 9)
    disk.store.forget(1, [1, 2, 5])
    disk.reopen()
    assert disk.store.kept(1, 7) == [3, 4, 6, 7]


def test_positions_are_remembered(disk: Disk) -> None:
    disk.store.set_position(3, "c:me", 7)
    disk.store.set_position(3, "c:me", 9)
    disk.store.set_position(4, "g:us", 1)
    disk.reopen()
    assert disk.store.load_positions() == {(3, "c:me"): 9, (4, "g:us"): 1}


def test_a_dropped_channel_is_gone_with_all_it_held(disk: Disk) -> None:
    disk.append("a", b"1")
    disk.append("b", b"2")
    disk.store.set_position(1, "c:me", 1)
    disk.store.drop_channel(1)
    disk.reopen()
    assert list(disk.channels) == ["b"]
    assert [data for _, data in disk.rows()] == [b"2"]
    assert not disk.store.load_positions()


@given(st.sets(st.integers(0, 60)))
def test_dense_runs(numbers: set[int]) -> None:
    runs = dense_runs(sorted(numbers))
    assert [each for low, high in runs for each in range(low, high + 1)] == sorted(numbers)
    assert all(second[0] > first[1] + 1 for first, second in itertools.pairwise(runs))


@settings(max_examples=20)
@given(st.sets(st.integers(1, 300), min_size=20))
def test_many_scattered_messages_are_forgotten(tmp_path_factory: pytest.TempPathFactory, sequences: set[int]) -> None:
    disk = Disk(tmp_path_factory.mktemp("scattered"))
    disk.append("a", *[b"x"] * 300)
    disk.store.forget(1, sequences)
    disk.store.close()
    assert {key - entry_id(1, 0) for key, _ in disk.rows()} == set(range(1, 301)) - sequences


def test_the_file_shrinks_when_most_of_it_is_free(disk: Disk) -> None:
    disk.append("a", *[b"x" * 100_000] * 900)
    pages = disk.rows("PRAGMA page_count")[0][0]
    disk.store.forget(1, range(1, 901))
    wait_until(lambda: disk.rows("PRAGMA page_count")[0][0] < pages - 4000)


# ---- a full disk


def test_a_full_disk_refuses_each_commit_with_a_reason_and_loses_nothing(disk: Disk) -> None:
    disk.append("a", b"1")
    full(disk)
    refused = disk.append("a", b"x" * 100_000)
    assert "full" in refused.error
    assert disk.channel("a").last_sequence == 1
    full(disk, 10_000)
    assert disk.append("a", b"2").firsts == [2]
    assert [data for _, data in disk.rows()] == [b"1", b"2"]


def test_in_a_refused_group_what_fits_is_stored(disk: Disk) -> None:
    disk.append("a", b"1")
    pages = disk.rows("PRAGMA page_count")[0][0]
    full(disk, pages + 2)
    large, small = Commit(), Commit()
    events = []
    with disk.store._wake:
        for commit, body in ((large, b"x" * 100_000), (small, b"2")):
            commit.appends = [(disk.channel("a"), [Record(body, 1)])]
            commit.done = (done := threading.Event()).set
            disk.store._commits.append(commit)
            events.append(done)
        disk.store._wake.notify()
    assert all(event.wait(10) for event in events)
    assert large.error
    assert (small.error, small.firsts) == ("", [2])


def test_what_could_not_be_forgotten_is_forgotten_later(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append("a", b"1", b"2")
    failures = iter([sqlite3.OperationalError("database or disk is full")] * 2)
    write_lazy = disk.store._write_lazy

    def failing(*arguments: object) -> None:
        if error := next(failures, None):
            raise error
        write_lazy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(disk.store, "_write_lazy", failing)
    disk.store.forget(1, [1])
    wait_until(lambda: [data for _, data in disk.rows()] == [b"2"])


def test_a_bug_in_the_writer_is_an_answer_not_a_silence(disk: Disk) -> None:
    commit = Commit()
    commit.appends = [(disk.channel("a"), [None])]  # type: ignore[list-item]
    assert disk.submit(commit).wait(10)
    assert "AttributeError" in commit.error
    assert disk.append("a", b"1").error == ""


class SmallDisk:
    """What ``statvfs`` says of a disk on which only the data folder lies."""

    f_frsize = 4096

    def __init__(self, folder: Path, size: int) -> None:
        used = sum(path.stat().st_size for path in folder.iterdir())
        self.f_blocks = size // 4096
        self.f_bavail = max(0, size - used) // 4096


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A store that believes its disk to have 24 MB."""
    monkeypatch.setattr("os.statvfs", lambda _: SmallDisk(tmp_path, 24 * 1024 * 1024))
    disk = Disk(tmp_path)
    yield disk
    disk.store.close()


def fill(disk: Disk) -> int:
    """Publish until the disk is full; how many were stored."""
    for count in range(100):
        if error := disk.append("a", b"x" * 500_000).error:
            assert "full" in error
            return count
    pytest.fail("the disk is never full")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_full_disk_keeps_the_reserve_and_a_short_log(small_disk: Disk) -> None:
    assert fill(small_disk) > 30
    assert size_of(small_disk.folder) < 24 * 1024 * 1024
    assert (small_disk.folder / "reserve").stat().st_size == 3 * 1024 * 1024


def test_on_a_full_disk_what_is_settled_makes_room(small_disk: Disk) -> None:
    stored = fill(small_disk)
    for sequence in range(1, stored, 2):
        small_disk.store.forget(1, [sequence])
    wait_until(lambda: len(small_disk.rows("SELECT id FROM entry")) == stored // 2)
    assert small_disk.append("a", b"x" * 500_000).error == ""
    assert fill(small_disk) > stored // 4
    assert size_of(small_disk.folder) < 24 * 1024 * 1024


def test_a_reserve_is_given_up_for_what_is_settled_and_taken_again(disk: Disk) -> None:
    disk.append("a", *[b"x"] * 4)
    reserve = disk.folder / "reserve"
    with_reserve: list[bool] = []
    write_lazy = disk.store._write_lazy

    def failing_beside_the_reserve(lazy: Any, now_s: int) -> None:
        if lazy:
            with_reserve.append(reserve.exists())
            if reserve.exists():
                raise sqlite3.OperationalError("database or disk is full")
        write_lazy(lazy, now_s)

    disk.store._write_lazy = failing_beside_the_reserve  # type: ignore[method-assign]
    disk.store.forget(1, [1, 2])
    wait_until(lambda: len(disk.rows()) == 2)
    assert with_reserve[-1] is False
    assert disk.append("a", b"y").error == ""
    assert reserve.exists()


def test_what_is_too_much_to_delete_at_once_is_deleted_in_pieces(disk: Disk) -> None:
    disk.append("a", *[b"x"] * 9)
    write_lazy = disk.store._write_lazy

    def failing_for_many(lazy: Any, now_s: int) -> None:
        sequences = [sequence for _, sequences in lazy.settled for sequence in sequences]
        if len(sequences) > 2 or 4 in sequences:
            raise sqlite3.OperationalError("database or disk is full")
        write_lazy(lazy, now_s)

    disk.store._write_lazy = failing_for_many  # type: ignore[method-assign]
    disk.store.forget(1, range(1, 9))
    disk.store.set_position(7, "c:me", 3)
    wait_until(lambda: [key & 0xFF for key, _ in disk.rows()] == [4, 9])
    wait_until(lambda: disk.store.load_positions() == {(7, "c:me"): 3})


def test_a_start_on_a_full_disk_gives_up_the_reserve(small_disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    small_disk.append("a", b"1")
    small_disk.store.close()
    monkeypatch.setattr("os.statvfs", lambda _: SmallDisk(small_disk.folder, 0))
    room = Room(small_disk.folder)
    room.reserve_bytes = 4096
    room.make_way()
    assert not (small_disk.folder / "reserve").exists()
    monkeypatch.setattr("os.statvfs", lambda _: SmallDisk(small_disk.folder, 24 * 1024 * 1024))
    small_disk.reopen()
    assert (small_disk.folder / "reserve").exists()


def test_the_highest_settled_sequence_is_remembered(disk: Disk) -> None:
    disk.append("a", *[b"x"] * 9)
    disk.store.forget(1, [5, 2])
    disk.reopen()
    assert (disk.store.settled_up_to(1), disk.store.settled_up_to(2)) == (5, 0)
    disk.store.forget(1, [1])
    disk.reopen()
    assert disk.store.settled_up_to(1) == 5


def test_of_an_older_database_everything_may_have_been_settled(disk: Disk) -> None:
    disk.append("a", *[b"x"] * 9)
    disk.store.close()
    disk.rows("DROP TABLE settled")
    disk.reopen()
    assert disk.store.settled_up_to(1) == 9


# ---- files


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE precious (id INTEGER)")
    connection.close()
    with pytest.raises(Unusable, match="belongs to another program"):
        Store(tmp_path)


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    Disk(tmp_path).store.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(Unusable, match="newer version"):
        Store(tmp_path)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 1000)
    with pytest.raises(Unusable, match=FILE_NAME):
        Store(tmp_path)


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(Unusable, match="cannot open"):
        Store(tmp_path)


def test_the_file_says_whose_it_is(disk: Disk) -> None:
    assert disk.rows("PRAGMA application_id") == [(APPLICATION_ID,)]
    assert disk.rows("PRAGMA journal_mode") == [("wal",)]


def test_the_file_is_not_closed_in_the_middle_of_a_read(tmp_path: Path) -> None:
    """A process whose SQLite connection is closed while another thread reads from it ends at once."""
    store: Any = Store(tmp_path)
    reader, closed_while_locked = store._reader, []

    class Reader:
        def close(self) -> None:
            closed_while_locked.append(store._reader_lock.locked())
            reader.close()

    store._reader = Reader()
    store.close()
    assert closed_while_locked == [True]
