"""Run a script in a process in which some packages cannot be imported.

    python -I isolated.py PACKAGE,PACKAGE,... SCRIPT ARGUMENT...

The named packages appear not to be installed: an import hook before all others rejects them. So if a script succeeds,
neither it nor its dependencies used them.
"""

import runpy
import sys


class Refusal:
    """A finder that finds nothing and stops the search for the named packages."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"{fullname} is blocked in this process", name=fullname)


if __name__ == "__main__":
    _, blocked, script, *arguments = sys.argv
    packages = frozenset(blocked.split(","))
    already = packages & {name.partition(".")[0] for name in sys.modules}
    if already:
        sys.exit(f"imported before they could be blocked: {', '.join(sorted(already))}")
    sys.meta_path.insert(0, Refusal(packages))
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
