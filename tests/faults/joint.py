"""A run of several processes in which one fault happens: ``python -m tests.faults.joint FOLDER --fault data-raises``.

The model counts its steps, and sums the numbers of its batches, so a checkpoint shows whether state and position are
those of one step. Each step waits for all processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.checkpoint import Checkpoints, orbax
from plait.partitioning import connect_processes, create_sharded
from plait.partitioning.processes import key_value_store
from plait.training import Batches, CallbackInfo, fit
from plait.training.loop import run as run_of_fit
from plait.training.loop.processes import agreement

STEPS, MIDDLE, LOAD = 40, 20, 0.02
BALLAST = 1_500_000  # bytes of each process: one checkpoint fits on the disk of ``small_disk.py``, and two do not


class Counter(plait.Module):
    """How many steps it has done, and the sum of the batches that it has seen."""

    def __init__(self, start: float = 1.0) -> None:
        self.weight = plait.Param(jnp.full(4, start))
        self.steps = plait.BatchStat(jnp.zeros((), jnp.int32))
        self.seen = plait.BatchStat(jnp.zeros((), jnp.int32))


class Ballast(plait.Module):
    """Numbers of which each process has a large part."""

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        numbers = np.zeros((mesh.size, BALLAST // 4), np.float32)
        place = NamedSharding(mesh, PartitionSpec("data"))
        self.numbers = plait.Param(jax.make_array_from_callback(numbers.shape, place, lambda part: numbers[part]))


@plait.jit(donate=True)
def count(model: Counter, batch: jax.Array) -> jax.Array:
    model.steps.value += 1
    model.seen.value += batch.max()
    model.weight.value = model.weight.value + batch.sum() * 1e-6
    return (model.weight.value * batch.sum()).mean()


@jax.jit
def total(batch: jax.Array) -> jax.Array:
    return batch.sum()


READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"'


class Fault:
    """What goes wrong in this process: ``happens(place)`` is called at each place where it may."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.kind, self.moment = options.fault, options.moment
        self.here = jax.process_index() == options.process
        self.step = {"first": 1, "fetching first": 1, "ending": 2, "evaluated": MIDDLE + 2, "last": STEPS}.get(
            self.moment, MIDDLE
        )
        self.number = 0  # of the batch

    def strikes(self, *kinds: str) -> bool:
        if self.here and self.kind in kinds:
            self.mark()
            return True
        return False

    def mark(self) -> None:
        """Note the time of the fault."""
        with contextlib.suppress(FileExistsError), open(self.options.folder / "struck", "x") as file:
            file.write(str(time.time()))

    def signal(self, moment: str) -> None:
        """At this moment, if it is the moment of the fault."""
        if moment == self.moment and self.here and self.kind in SIGNALS:
            self.here = False
            self.mark()
            if self.options.wake_after:
                subprocess.Popen(["sh", "-c", f"sleep {self.options.wake_after}; kill -CONT {os.getpid()}"])
            if self.options.kill_after:
                subprocess.Popen(["sh", "-c", f"sleep {self.options.kill_after}; kill -KILL {os.getpid()}"])
            launcher, number = os.getppid(), SIGNALS[self.kind]
            if self.kind == "sigterm-group":  # as from a service manager that ends all processes of a service
                for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
                    os.kill(int(child), number)
            os.kill(launcher if self.kind in ("sigterm-all", "sigterm-group") else os.getpid(), number)


SIGNALS = {
    "sigterm": signal.SIGTERM,
    "sigterm-all": signal.SIGTERM,
    "sigterm-group": signal.SIGTERM,
    "sigkill": signal.SIGKILL,
    "sigstop": signal.SIGSTOP,
    "network": 0,  # no signal: whoever started this cuts it
}


def source(fault: Fault):
    for number in range(1, STEPS + 1):
        if number == fault.step + 1 and fault.moment == "ending" and fault.here:
            threading.Timer(3, fault.signal, ["ending"]).start()
            return
        if number == fault.step:
            if fault.strikes("data-ends"):
                return
            if fault.strikes("data-raises"):
                raise OSError("the data is gone")
            if fault.strikes("data-raises-no-text"):
                raise NoTextError
            if fault.strikes("data-hangs"):
                time.sleep(600)
            if fault.moment == "ending" and not fault.here:
                time.sleep(600)
            if fault.moment.startswith("fetching"):
                fault.signal(fault.moment)
                time.sleep(600)  # in the other processes too
        yield np.full(8, number, np.int32)


class NoTextError(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("an error of the error")

    __repr__ = __str__


class Notice:
    """A callback with a state, which checkpoints save."""

    def __init__(self, fault: Fault, wait_for_others: Callable[[], object]) -> None:
        self.fault, self.wait_for_others = fault, wait_for_others
        self.is_new = True

    def __call__(self, info: CallbackInfo) -> None:
        self.is_new = False
        if self.fault.kind == "callback-raises-alone":  # the others wait for it, on their devices
            if info.step == self.fault.step and self.fault.strikes("callback-raises-alone"):
                raise OSError("the callback is wrong")
            self.wait_for_others()
        if self.fault.options.callbacks_wait:
            self.wait_for_others()
        if self.fault.kind == "callback-saves" and info.step == self.fault.step:  # and fails before, in one of them
            if self.fault.strikes("callback-saves"):
                raise OSError("the callback is wrong")
            plait.checkpoint.save(self.fault.options.folder / "best", info.objects)
        if info.step == self.fault.step and self.fault.strikes("callback-raises"):
            raise OSError("the callback is wrong")
        if info.step == self.fault.step and self.fault.strikes("exits"):
            sys.exit(3)
        if info.step == self.fault.step and self.fault.strikes("is-done"):
            sys.exit(0)
        if info.step == self.fault.step and self.fault.strikes("callback-raises-no-text"):
            raise NoTextError

    def get_state(self) -> dict[str, int]:
        if not self.is_new and self.fault.strikes("callback-state-raises"):
            raise OSError("the callback's state is wrong")
        return {"process": jax.process_index()}

    def set_state(self, state: dict[str, int]) -> None:
        if self.fault.strikes("restoring-raises"):
            raise OSError("the restoring is wrong")
        (self.fault.options.folder / f"restored-{jax.process_index()}").write_text(str(state["process"]))


def main(options: argparse.Namespace) -> None:
    connect_processes()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    fault = Fault(options)
    model_of: dict[str, plait.Module] = {}
    fault.signal("connected")

    def shared(batch: np.ndarray) -> jax.Array:
        if options.copies:
            return jnp.asarray(batch)
        return jax.make_array_from_callback(
            batch.shape, NamedSharding(mesh, PartitionSpec("data")), lambda place: batch[place]
        )

    def step(model: Counter, *others: Any) -> jax.Array:
        batch = others[-1]
        number = int(batch[0])
        at = "first" if number == 1 else "mid" if number == MIDDLE else ""
        fault.signal(at)
        if number == fault.step and fault.strikes("step-raises"):  # before it changes anything
            raise OSError("the step is wrong")
        if number == fault.step and fault.strikes("step-raises-no-text"):
            raise NoTextError
        time.sleep(options.load)
        loss = count(model, shared(batch))
        return loss * jnp.nan if number == fault.step and fault.strikes("nan") else loss

    def evaluate() -> dict[str, float]:
        fault.signal("evaluating")
        model: Any = model_of["model"]
        kept, model.steps.value = model.steps.value, model.steps.value + 100  # as if it were of averages
        if (int(kept) == STEPS) == (fault.moment == "last") and fault.strikes("evaluation-raises"):
            raise OSError("the evaluation is wrong")
        if int(kept) == STEPS and fault.moment == "last" and fault.kind == "sigterm":
            with open(options.folder / f"evaluated-{jax.process_index()}", "a") as file:
                file.write(".")
            if fault.here:
                fault.signal("last")
                time.sleep(2)
                raise OSError("the evaluation is wrong")
        time.sleep(options.evaluation)
        found = {"total": float(total(shared(np.arange(8))))}
        model.steps.value = kept
        return found

    begin, arrive = orbax.Saving._begin, orbax.Saving.arrive

    def begin_in_time(saving: orbax.Saving) -> None:
        if saving.manifest.step == MIDDLE:
            fault.strikes("disk-full")  # there is no room for another checkpoint
            if fault.strikes("write-fails"):  # for this process alone, which has a view of its own
                subprocess.run(["sh", "-ec", READ_ONLY, "sh", options.folder / "checkpoints"], check=True)
        begin(saving)

    def arrive_in_time(saving: orbax.Saving) -> None:
        if saving.manifest.step == MIDDLE:
            fault.signal("saving")
        time.sleep(options.save_takes)
        arrive(saving)

    worst = agreement.MultiProcess.worst

    def worst_heard_late(together: agreement.MultiProcess, *given: Any) -> str:
        heard = worst(together, *given)
        if options.moment == "hearing" and not fault.here:
            time.sleep(1)
        return heard

    def hear_late(key: str, *arguments: Any, **named: Any) -> str | None:
        heard = key_value_store.await_entry(key, *arguments, **named)
        time.sleep(2 * key.endswith("/last"))
        return heard

    def check_late(run: Any) -> None:
        time.sleep(run.error is not None)
        check_whole(run)

    check_whole = run_of_fit.Run.check_whole
    if options.late and fault.here:
        run_of_fit.Run.check_whole = check_late
    elif options.late:
        agreement.await_entry = hear_late
    orbax.Saving._begin, orbax.Saving.arrive = begin_in_time, arrive_in_time
    agreement.MultiProcess.worst = worst_heard_late
    with contextlib.ExitStack() as held:
        if not options.copies:
            held.enter_context(jax.set_mesh(mesh))
        checkpoints = None
        if not options.without_checkpoints:
            checkpoints = held.enter_context(Checkpoints(options.folder / "checkpoints"))
        start = 2.0 if fault.strikes("other-model") else 1.0
        model_of["model"] = Counter(start) if options.copies else create_sharded(lambda: Counter(start))
        if fault.kind in ("disk-full", "nan") or options.late:
            model_of["ballast"] = Ballast(mesh)
        fitted = fit(
            step, model_of, Batches(lambda epoch: source(fault), epochs=1), checkpoints=checkpoints,
            steps=0 if fault.strikes("wrong-steps") else STEPS,
            save_every=7 if fault.strikes("other-arguments") else options.save_every,
            log_every=1, show=False,
            callbacks=[Notice(fault, lambda: float(total(shared(np.arange(8)))))],
            evaluate=evaluate if options.evaluate else None, evaluate_every=MIDDLE if options.evaluate else None,
            data_timeout=5.0 if fault.kind == "data-hangs" else None,
        )  # fmt: skip
    print(json.dumps({"step": fitted.step, "reason": fitted.reason}), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--process", type=int, default=1)
    parser.add_argument("--moment", default="mid")
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--wake-after", type=int, help="seconds after which a process that was stopped goes on")
    parser.add_argument("--kill-after", type=int, help="seconds after which a process that has a signal is killed")
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--save-takes", type=float, default=0.3, help="seconds")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--evaluation", type=float, default=0.3, help="seconds of an evaluation")
    parser.add_argument(
        "--copies", action="store_true", help="each process has a copy of the model, and shares nothing"
    )
    parser.add_argument("--without-checkpoints", action="store_true")
    parser.add_argument("--callbacks-wait", action="store_true", help="for the other processes, at each step")
    parser.add_argument("--late", action="store_true", help="the other processes hear of the agreement late")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
