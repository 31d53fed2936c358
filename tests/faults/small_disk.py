"""A real disk of 5 MB for the checkpoints of a run: a tmpfs that only the run sees.

Each process has a view of its own of it, which it may make read-only for itself.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_ROOT = ["unshare", "-rm", "sh", "-ec"]
_MOUNT = 'mkdir -p "$1/checkpoints"; mount -t tmpfs -o size=5m tmpfs "$1/checkpoints"'
_RUN = """
folder=$1; shift
status=0
"$@" || status=$?
cp -a "$folder/checkpoints" "$folder/copy"  # it is gone with the mount
umount "$folder/checkpoints"
rmdir "$folder/checkpoints"
mv "$folder/copy" "$folder/checkpoints"
exit $status
"""


def is_possible() -> bool:
    """Whether this user may mount such a disk here."""
    if not all(shutil.which(name) for name in ("unshare", "mount")):
        return False
    test = 'mount -t tmpfs tmpfs "$1"; mount -o remount,bind,ro "$1"'
    return subprocess.run([*_ROOT, test, "sh", "/tmp"], capture_output=True, check=False).returncode == 0


def around(folder: Path) -> tuple[list[str], list[str]]:
    """Two commands that take a command: for the whole run, and for each of its processes."""
    return [*_ROOT, f"{_MOUNT}\n{_RUN}", "sh", str(folder)], ["unshare", "-m"]
