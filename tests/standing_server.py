"""A process that runs one script after the other, so that what they all import is imported once.

It reads a list of arguments as JSON from each line of its input, the script first, and answers with a line of JSON: the
exit status and what was printed. ``isolated.py`` starts it, so that the scripts cannot import what it blocks.
"""

import contextlib
import gc
import io
import json
import os
import runpy
import sys
import traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print by themselves is no answer


def outcome(arguments):
    sys.argv, path = arguments, list(sys.path)
    printed, status = io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            status = 0 if end.code is None else end.code
            if not isinstance(status, int):
                print(status)
                status = 1
        except BaseException:
            traceback.print_exc()
            status = 1
    sys.path[:] = path
    gc.collect()  # models of the script that has ended
    return status, printed.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(outcome(json.loads(line))), file=answers, flush=True)
