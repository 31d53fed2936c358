"""A training run in which one process ends by itself: ``NUMBER:STEP:HOW`` of the last argument says which, when, how.

Not a test: a program for tests of runs with several processes.
"""

import os
import signal
import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import transformer

import plait


def main(mesh: str, steps: str, folder: str, death: str, blocks: str = "2") -> None:
    plait.partitioning.connect_processes(heartbeat_timeout_seconds=10)
    number, last, how = death.split(":")

    def report(step: int, loss: float) -> None:
        print(f"step {step} loss {loss!r}", flush=True)
        if (str(jax.process_index()), str(step)) == (number, last):
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this process has had enough")

    sizes = {name: int(size) for name, _, size in (part.partition("=") for part in mesh.split(","))}
    with transformer.on_mesh(sizes):
        transformer.train(
            transformer.Config(blocks=int(blocks)), int(steps), folder=Path(folder), every=4, report=report
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
