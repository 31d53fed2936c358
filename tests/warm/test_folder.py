"""The folder of stored programs: whole files, by many processes, with a limit, and only one's own. (rules W7, W8)"""

import hashlib
import json
import os
import shutil
import threading

import jax.numpy as jnp
import pytest

import plait
from plait.errors import ProgramCacheError, ProgramCacheWarning
from plait.warm.folder import Folder
from tests.sampling import slow_but


def double(x):
    return x * 2


def triple(x):
    return x * 3


def run(f, folder, **options):
    stored = plait.jit(f, cache=folder, **options)
    return float(stored(jnp.float32(1))), stored.jitted_fn.programs.counts


def only_file(folder):
    (file,) = folder.glob("*.program")
    return file


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"x",
    "another kind": lambda content: b"\x80\x04" + content,
    "first byte": lambda content: flipped(content, 0),
    "sum": lambda content: flipped(content, 20),
    "header": lambda content: flipped(content, 120),
    "program": lambda content: flipped(content, len(content) - 100),
}


@pytest.mark.parametrize("name", slow_but([*DAMAGE][::3], DAMAGE))
def test_w7_a_damaged_program_is_refused_and_made_anew(tmp_path, name):
    run(double, tmp_path)
    file = only_file(tmp_path)
    content = file.read_bytes()
    file.write_bytes(DAMAGE[name](content))
    with pytest.warns(ProgramCacheWarning, match=rf"rejected(.*\n)+.*at +{file}"):
        value, counts = run(double, tmp_path)
    assert (value, counts["loaded"], counts["stored"]) == (2.0, 0, 1)
    assert run(double, tmp_path) == (2.0, {"loaded": 1, "stored": 0, "not stored": 0})


WRONG = {
    "no fields": lambda header: header.clear(),
    "no key": lambda header: header.pop("key"),
    "donated that is text": lambda header: header.update(donated="0"),
    "donated that is missing": lambda header: header.pop("donated"),
    "a read of two parts": lambda header: header.update(reads=[["a", "b"]]),
    "packages in a list": lambda header: header.update(packages=[]),
    "an outcome without a kind": lambda header: header.update(outcome=[]),
    "an executable that is text": lambda header: header.update(executable="x"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_w7_a_wrong_header_with_its_own_sum_is_refused(tmp_path, change):
    """The sum is computed again after the damage, so the damage reaches whoever reads the header."""
    run(double, tmp_path)
    file = only_file(tmp_path)
    first, head, program = file.read_bytes().split(b"\n", 2)
    header = json.loads(head)
    change(header)
    rest = json.dumps(header).encode() + b"\n" + program
    magic = first[: -len(hashlib.sha256(rest).hexdigest())]
    file.write_bytes(magic + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
    with pytest.warns(ProgramCacheWarning, match=rf"compiled again\n(.*\n)*.*at +{file}"):
        assert run(double, tmp_path)[0] == 2.0


def test_w7_a_program_under_another_ones_name_is_refused(tmp_path):
    run(double, tmp_path / "a")
    run(triple, tmp_path / "b")
    shutil.copyfile(only_file(tmp_path / "b"), only_file(tmp_path / "a"))
    only_file(tmp_path / "a").chmod(0o600)
    with pytest.warns(ProgramCacheWarning, match="belongs to a different program"):
        assert run(double, tmp_path / "a")[0] == 2.0


def test_w7_many_at_once_store_and_read_whole_programs(tmp_path):
    """Threads, which meet more closely than processes do; each has a jitted function of its own."""
    found, barrier = [], threading.Barrier(4)

    def work():
        barrier.wait()
        for f, value in ((double, 2.0), (triple, 3.0)) * 2:
            found.append(run(f, tmp_path)[0] == value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 16
    # One key may have a second program, if one trace entered more of the library than another, as a finalizer may.
    assert {path.suffix for path in tmp_path.iterdir()} == {".program"}
    assert len({path.name.partition("-")[0] for path in tmp_path.iterdir()}) == 2


def test_w7_the_programs_used_longest_ago_are_removed(tmp_path):
    run(double, tmp_path)
    first = only_file(tmp_path)
    os.utime(first, (1, 1))
    run(triple, tmp_path, cache_limit=first.stat().st_size + 10)
    assert not first.exists()
    assert run(triple, tmp_path)[1]["loaded"] == 1  # which is used now, and so stays
    second = only_file(tmp_path)
    run(double, tmp_path, cache_limit=10 * second.stat().st_size)
    assert len([*tmp_path.glob("*.program")]) == 2


def test_w7_the_newest_program_stays_however_large_it_is(tmp_path):
    run(double, tmp_path, cache_limit=1)
    assert run(double, tmp_path, cache_limit=1)[1]["loaded"] == 1


def test_w7_a_use_counts_as_one(tmp_path):
    run(double, tmp_path)
    os.utime(only_file(tmp_path), (1, 1))
    run(double, tmp_path)
    assert only_file(tmp_path).stat().st_mtime > 1


needs_modes = pytest.mark.skipif(os.name == "nt", reason="who may write is not in the mode there")


@needs_modes
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o1777], ids=oct)
def test_w8_a_folder_that_others_can_write_is_refused(tmp_path, mode):
    folder = tmp_path / "programs"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ProgramCacheError, match=rf"at +{folder}\n +found +others can write"):
        run(double, folder)
    assert not [*folder.iterdir()]


@needs_modes
def test_w8_a_folder_within_one_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ProgramCacheError, match=rf"at +{tmp_path / 'open'}\n"):
        run(double, tmp_path / "open" / "programs")


@needs_modes
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_w8_a_folder_of_another_user_is_refused(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(ProgramCacheError, match="belongs to another user"):
        run(double, folder)


@needs_modes
def test_w8_the_owner_is_compared_with_the_user(tmp_path, monkeypatch):
    run(double, tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    if os.stat(tmp_path).st_uid == 0:  # root is trusted
        Folder(tmp_path).check()
    else:
        with pytest.raises(ProgramCacheError, match="belongs to another user"):
            Folder(tmp_path).check()


@needs_modes
@pytest.mark.parametrize("spoil", ["mode", "link"])
def test_w8_a_program_that_others_can_write_is_refused(tmp_path, spoil):
    run(double, tmp_path)
    file = only_file(tmp_path)
    if spoil == "mode":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(ProgramCacheWarning, match="rejected"):
        assert run(double, tmp_path)[1]["loaded"] == 0
    assert run(double, tmp_path)[1]["loaded"] == 1


@needs_modes
def test_w8_the_folder_and_its_files_are_for_their_owner(tmp_path):
    before = os.umask(0)
    try:
        run(double, tmp_path / "programs")
    finally:
        os.umask(before)
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700
    assert only_file(tmp_path / "programs").stat().st_mode & 0o777 == 0o600
