"""The command line: ``python -m benchmarks [NAME ...]``, with the names of ``NAMES``; all of them by default."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import sys
from typing import Any

NAMES = (
    "dispatch", "graph", "transitions", "tracing", "memory", "imports", "whole_models", "scaling", "exports",
    "export_zoo", "loop", "build", "stack", "tabulate", "compare", "eager", "checkpoint", "generate",
    "field", "first_call", "serving",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; the figures mean nothing"
    )
    parser.add_argument("--steps", help="dispatch and field: only these, separated by commas")
    parser.add_argument("--alone", action="store_true", help="dispatch and build: only plait and the floor")
    parser.add_argument("--write", action="store_true", help="field: also write docs/field.md")
    parser.add_argument("--wide", action="store_true", help="whole_models: sizes for a GPU")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the tables to FILE")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX is imported

    from .table import versions

    print(", ".join(f"{name} {version}" for name, version in versions().items()), end="\n\n")
    written = []
    for name in options.names or NAMES:
        benchmark = importlib.import_module(f".{name}", __package__)
        given: dict[str, Any] = {"alone": options.alone} if name in ("dispatch", "build") else {}
        if name in ("dispatch", "field") and options.steps:
            given["steps"] = options.steps.split(",")
        if name == "field":
            given["write"] = options.write
        if name == "whole_models":
            given["wide"] = options.wide
        for table in benchmark.run(quick=options.quick, **given):
            print(table, flush=True)
            written.append({"benchmark": name, **vars(table)})
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), "tables": written}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
