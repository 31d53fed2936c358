"""The faults of a run of several processes, where and when they happen, and the table of what was kept.

``python -m tests.faults.matrix`` runs all of them with two processes, and writes the table into docs/reliability.md.
With a number as argument it runs so many processes, and prints the table.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

from tests.faults import joint, small_disk, two_machines

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- the matrix: written by tests/faults/matrix.py -->", "<!-- the end of the matrix -->"
HEARTBEAT = 20  # seconds, of connect_processes
SILENCE = HEARTBEAT + 15  # until all have ended, when one process does not answer
ENDED = {
    "sigkill": "the others ended by the launcher",
    "sigstop": f"the others ended by JAX, within {SILENCE} s",
    "network": f"all ended by JAX, within {SILENCE} s",
}
LOSSES = tuple(ENDED)
MOMENTS = ("first", "mid", "saving", "evaluating")


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        fault: as in ``joint.py``.
        moment: ``first``, ``mid``, ``saving`` or ``evaluating``.
        process: in which process.
        kept: the lowest step that has to be kept.
        says: what all processes have to say, if they can.
        reason: the reason that ``fit`` returns; ``None`` if it raises.
    """

    fault: str
    moment: str
    process: int
    kept: int
    says: str | None = None
    reason: str | None = None

    @property
    def options(self) -> list[str]:
        found = [f"--fault={self.fault}", f"--moment={self.moment}", f"--process={self.process}"]
        if self.moment == "saving":
            found.append(f"--save-every={joint.MIDDLE // 2}")
        elif self.fault == "step-raises" or (self.fault in (*LOSSES, "nan") and self.moment != "first"):
            found.append("--save-every=8")
        return [*found, "--evaluate"] if self.moment == "evaluating" else found

    @property
    def name(self) -> str:
        return f"{self.fault} in {self.process}, {self.moment}"


def cases(process: int) -> list[Case]:
    """The faults of a process."""
    mid = joint.MIDDLE
    signals = [
        Case(fault, moment, process, kept, reason="SIGTERM")
        for fault in ("sigterm", "sigterm-all")
        for moment, kept in [("first", 1), ("mid", mid), ("saving", mid), ("evaluating", mid)]
    ]
    losses = [
        Case(fault, moment, process, kept)
        for fault in LOSSES
        for moment, kept in [("first", 0), ("mid", 8), ("saving", 10), ("evaluating", 8)]
        if (fault, process) != ("network", 1)  # it is the same for both
    ]
    data = [
        Case("data-raises", "first", process, 0, "OSError: the data is gone"),
        Case("data-raises", "mid", process, mid - 1, "OSError: the data is gone"),
        Case("data-ends", "first", process, 0, "an epoch has no batches"),
        Case("data-ends", "mid", process, mid - 1, reason="data"),
        Case("data-hangs", "first", process, 0, "no batch arrived in time"),
        Case("data-hangs", "mid", process, mid - 1, "no batch arrived in time"),
    ]
    code = [
        Case("evaluation-raises", "evaluating", process, mid, "OSError: the evaluation is wrong"),
        Case("callback-raises", "mid", process, mid, "OSError: the callback is wrong"),
        Case("nan", "mid", process, 16, "the loss is nan at step 20"),
        Case("step-raises", "first", process, 0, "OSError: the step is wrong"),
        Case("step-raises", "mid", process, 16, "OSError: the step is wrong"),
    ]
    disk = [
        Case("write-fails", "saving", process, 10, "Read-only file system"),
        Case("disk-full", "saving", process, 10, "No space left|RESOURCE_EXHAUSTED"),
    ]
    return [*signals, *losses, *data, *code, *disk]


@dataclasses.dataclass(frozen=True)
class Row:
    """What happened."""

    case: Case
    kept: int
    status: int
    seconds: float
    ended: str


def impossible(case: Case) -> str | None:
    """Why the case cannot be run here."""
    if case.fault == "network" and not two_machines.are_possible():
        return "needs namespaces of its own, and ip"
    if case.fault in ("disk-full", "write-fails") and not small_disk.is_possible():
        return "needs mounts of its own"
    return None


def table(rows: list[Row]) -> str:
    """The faults in Markdown, with the steps that were kept: for each moment, by the process of the fault."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.case.fault, f"{row.ended}, status {row.status}"), []).append(row)
    lines = [f"| fault | {' | '.join(MOMENTS)} | how it ended | seconds |", "| --- " * 7 + "|"]
    for (fault, ended), found in grouped.items():
        kept = [", ".join(str(row.kept) for row in found if row.case.moment == moment) for moment in MOMENTS]
        seconds = sorted({round(row.seconds) for row in found})
        until = f" to {seconds[-1]}" if len(seconds) > 1 else ""
        lines.append(f"| {fault} | {' | '.join(kept)} | {ended} | {seconds[0]}{until} |")
    return "\n".join(lines)


def run(case: Case, processes: int, folder: Path) -> Row:
    """Run a case, and check what must hold in all of them."""
    from tests.faults.test_joint_runs import Outcome

    found = Outcome(folder, *case.options, processes=processes)
    assert found.kept >= case.kept, (case, found.kept, found.errors)
    seconds = found.after_fault
    assert seconds < SILENCE, (case, seconds, found.errors)
    if case.reason is not None:
        assert len({str(result) for result in found.results}) == 1, (case, found.results, found.errors)
        assert len(found.results) == processes, (case, found.results, found.errors)
        assert found.results[0]["reason"] in (case.reason, "steps"), (case, found.results)
        ended = f"reason `{found.results[0]['reason']}` in all"
    else:
        assert found.status != 0, (case, found.errors)
        assert case.says is None or found.all_say(case.says), (case, found.errors)
        ended = f"`{case.says.partition('|')[0]}` in all" if case.says else ENDED[case.fault]
    return Row(case, found.kept, found.status, seconds, ended)


def main() -> None:
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rows = []
    for process in (0, 1):
        for case in cases(process):
            reason = impossible(case)
            if reason:
                print("SKIPPED", case.name, reason, flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    rows.append(run(case, processes, Path(folder)))
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
                except Exception as error:
                    print("FAILED", case.name, str(error)[-3000:], flush=True)
    if processes == 2 and len(rows) == sum(len(cases(process)) for process in (0, 1)):
        write(rows)


def write(rows: list[Row]) -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
