"""What a process tells ``plait launch``."""

import shutil
import time

import pytest

from plait.partitioning.processes import launched


def test_the_first_to_say_so_has_failed_first(tmp_path, monkeypatch):
    monkeypatch.setenv(launched.FOLDER, str(tmp_path))
    assert launched.first_in(tmp_path) is None
    launched.tell_first(1)
    launched.tell_first(0)
    assert launched.first_in(tmp_path) == 1


def test_who_saves_is_known_while_it_does(tmp_path, monkeypatch):
    monkeypatch.setenv(launched.FOLDER, str(tmp_path))
    monkeypatch.setenv(launched.NUMBER, "12")
    with pytest.raises(OSError, match="full"), launched.saving():
        with launched.saving():
            assert launched.saving_in(tmp_path) == {12}
        assert launched.saving_in(tmp_path) == {12}
        raise OSError("full")
    assert launched.saving_in(tmp_path) == set()


def test_what_has_cleaned_up_the_folder_does_not_matter(tmp_path, monkeypatch):
    """Saves were no longer waited for."""
    monkeypatch.setenv(launched.FOLDER, str(tmp_path / "folder"))
    monkeypatch.setenv(launched.NUMBER, "1")
    with launched.saving():
        assert launched.saving_in(tmp_path / "folder") == {1}
    shutil.rmtree(tmp_path / "folder")
    launched.tell_first(1)
    assert launched.first_in(tmp_path / "folder") == 1


@pytest.mark.slow
def test_a_process_that_is_stopped_does_not_save(tmp_path, monkeypatch):
    """It is waited for as long as it shows that it runs."""
    monkeypatch.setenv(launched.FOLDER, str(tmp_path))
    monkeypatch.setenv(launched.NUMBER, "1")
    monkeypatch.setattr(launched, "STILL", 0.5)
    monkeypatch.setattr(launched, "_BEAT", 0.05)
    with launched.saving():
        time.sleep(1)
        assert launched.saving_in(tmp_path) == {1}
        monkeypatch.setattr(launched, "_beat", lambda mark: None)
        time.sleep(1)
        assert launched.saving_in(tmp_path) == set()


@pytest.mark.parametrize("folder", [None, "/no/such/folder"])
def test_without_a_launcher_nothing_happens(monkeypatch, folder):
    monkeypatch.delenv(launched.FOLDER, raising=False)
    if folder:
        monkeypatch.setenv(launched.FOLDER, folder)
    launched.tell_first(0)
    with launched.saving():
        pass


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("120", 120.0), ("long", None)])
def test_the_grace_period_is_a_number_of_seconds(monkeypatch, text, seconds):
    monkeypatch.delenv(launched.GRACE, raising=False)
    if text:
        monkeypatch.setenv(launched.GRACE, text)
    assert launched.grace() == seconds
