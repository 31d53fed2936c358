"""The processes of a run on two machines, as far as Linux's namespaces go, and the end of the network between them.

Process 0 runs on the first machine, all others on the second. Each machine has a network, a host name and an address of
its own. When the program says that it is time (the file ``struck`` in its folder), the link is taken down: no
connection is closed, and no packet arrives any more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.environment import environment

LIMIT = 240  # seconds
_SETUP = """
mount -t tmpfs tmpfs /run
printf '127.0.0.1 localhost\\n10.9.0.1 zero\\n10.9.0.2 one\\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
hostname zero
ip netns add one
ip link add name link0 type veth peer name link1
ip link set link1 netns one
ip addr add 10.9.0.1/24 dev link0
ip link set link0 up
ip link set lo up
ip netns exec one ip addr add 10.9.0.2/24 dev link1
ip netns exec one ip link set link1 up
ip netns exec one ip link set lo up
"""
_RUN = """
folder=$1; processes=$2; shift 2
JAX_PROCESS_ID=0 "$@" > "$folder/out-0" 2> "$folder/err-0" & all=$!
for number in $(seq 1 $((processes - 1))); do
  JAX_PROCESS_ID=$number ip netns exec one unshare -u sh -c 'hostname one; exec "$@"' sh "$@" \
    > "$folder/out-$number" 2> "$folder/err-$number" & all="$! $all"
done
all_run() { for each in $all; do kill -0 $each || return 1; done; }
while [ ! -e "$folder/struck" ] && all_run; do sleep 0.02; done
ip link set link0 down
status=0
for each in $all; do wait $each || status=$?; done
exit $status
"""
_COMMAND = ["unshare", "-rnmu", "bash", "-ec"]


def are_possible() -> bool:
    """Whether this user may make such machines here."""
    if not all(shutil.which(name) for name in ("unshare", "ip", "bash")):
        return False
    return subprocess.run([*_COMMAND, _SETUP], capture_output=True, check=False).returncode == 0


def run(folder: Path, command: Sequence[str], processes: int = 2) -> tuple[int, str, str]:
    """Run a program as several processes.

    Returns:
        Its status, output and errors, each line with the number of its process, as ``plait launch`` prints them.
    """
    surroundings = environment(
        JAX_COORDINATOR_ADDRESS="10.9.0.1:5000",
        JAX_NUM_PROCESSES=str(processes),
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_force_host_platform_device_count=1",
        PYTHONUNBUFFERED="1",
    )
    done = subprocess.run(
        [*_COMMAND, _SETUP + _RUN, "bash", str(folder), str(processes), sys.executable, *command],
        env=surroundings, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    output, errors = (_numbered(folder, name, processes) for name in ("out", "err"))
    return done.returncode, output, done.stderr + errors


def _numbered(folder: Path, name: str, processes: int) -> str:
    texts = [(number, (folder / f"{name}-{number}").read_text()) for number in range(processes)]
    return "".join(f"[{number}] {line}\n" for number, text in texts for line in text.splitlines())
