"""The data folder: its lock and its delivery marks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connector.embedded.folder import DeliveryMarks, FolderLock
from connector.embedded.schema import Unusable


def test_one_server_at_a_time(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "new" / "data", 0)
    with pytest.raises(Unusable, match=f"in use by another server .process {os.getpid()}"):
        FolderLock(tmp_path / "new" / "data", 0)
    lock.release()
    FolderLock(tmp_path / "new" / "data", 0).release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="file"):
        FolderLock(tmp_path / "file", 0)


def test_marks_survive(tmp_path: Path) -> None:
    marks = DeliveryMarks(tmp_path, fresh=True)
    marks.trust()
    marks.write(5, 2**40)
    marks.write(1, 7)
    marks.close()
    again = DeliveryMarks(tmp_path, fresh=False)
    assert [again.recovered(channel_id) for channel_id in range(1, 9)] == [7, 0, 0, 0, 2**40, 0, 0, 0]
    again.close()


def test_marks_of_another_database_are_dropped(tmp_path: Path) -> None:
    marks = DeliveryMarks(tmp_path, fresh=False)
    marks.write(1, 7)
    marks.close()
    fresh = DeliveryMarks(tmp_path, fresh=True)
    assert not fresh.recovered(1)
    fresh.close()


def test_a_torn_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "delivered").write_bytes(b"KMQEsent\x02\0\0\0\0\0\0\0\x03\0")
    marks = DeliveryMarks(tmp_path, fresh=False)
    assert [marks.recovered(channel_id) for channel_id in range(1, 3)] == [2, 0]
    marks.close()


@pytest.mark.parametrize("content", [None, b"", b"KMQE", bytes(4096)])
def test_marks_that_are_lost_are_not_taken_for_nothing_handed_out(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "delivered").write_bytes(content)
    marks = DeliveryMarks(tmp_path, fresh=False)
    assert marks.recovered(1) is None
    marks.close()


def test_a_start_that_did_not_note_everything_leaves_marks_that_are_lost(tmp_path: Path) -> None:
    marks = DeliveryMarks(tmp_path, fresh=True)
    marks.trust()
    marks.close()
    DeliveryMarks(tmp_path, fresh=False).close()
    again = DeliveryMarks(tmp_path, fresh=False)
    assert again.recovered(1) is None
    again.close()


def test_a_mark_that_cannot_be_written_is_counted_and_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = DeliveryMarks(tmp_path, fresh=True)
    marks.trust()

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        marks.write(1, 7)
    assert marks.failed_count == 1
    marks.close()
    again = DeliveryMarks(tmp_path, fresh=False)
    assert again.recovered(1) is None
    again.close()
