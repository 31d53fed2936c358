"""A process that has imported JAX and nothing of plait, and forks for each program that it is to run.

It reads a request as JSON from each line of its input, and answers with the status with which the program ended.
"""

import json
import os
import runpy
import sys
import types
import warnings

import jax  # noqa: F401  (not its backends: they start threads)


def main():
    """Answer requests; in a process that was forked, give the command that it is to run."""
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks where there are threads: those of NumPy, which provides for it
            pid = os.fork()
        if pid == 0:
            settle(request)
            return request["command"]
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def settle(request):
    """Environment, folder and files of the new process."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    files = [os.open(os.devnull, os.O_RDONLY), *(os.open(f, os.O_WRONLY | os.O_CREAT) for f in request["files"])]
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)


def run(command):
    """As ``python COMMAND`` does."""
    first, *rest = command
    sys.path[0] = os.path.dirname(first) if first not in ("-c", "-m") else "" if first == "-c" else os.getcwd()
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif first == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__" and (given := main()) is not None:
    run(given)
