"""Mistakes with programs that outlive the process (``plait.jit(f, cache=folder)``)."""

from plait.errors import ArgumentError, ProgramCacheError, ProgramCacheWarning

from .rows import Row

FOLDER = """
import os, pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
f = jnp.sin
"""

ROWS = {
    "store without a folder": Row(
        "plait.jit(function).jitted_fn.store(x)",
        ArgumentError,
        "plait.jit without cache=",
        setup="function = lambda x: x",
    ),
    "a function that cannot be recorded": Row(
        "plait.jit(lambda x: x * len(os.listdir('.')), cache=folder)(x)",
        ProgramCacheWarning,
        "cannot be stored",
        setup=FOLDER,
    ),
    "a folder that others can change": Row(
        "plait.jit(f, cache=folder)(x)",
        ProgramCacheError,
        "others can write to it",
        setup=FOLDER + "folder.chmod(0o777)\n",
    ),
    "a stored program that was changed": Row(
        "file.write_bytes(file.read_bytes()[:-1]); plait.jit(f, cache=folder)(x)",
        ProgramCacheWarning,
        "its checksum does not match",
        setup=FOLDER + "plait.jit(f, cache=folder)(x); [file] = folder.iterdir()\n",
    ),
    "a report of a folder that is not there": Row(
        "list(contents(folder / 'away'))",
        ArgumentError,
        ("there is no folder of programs", r"at +\S+away"),
        setup=FOLDER + "from plait.warm.contents import contents\n",
    ),
    "a folder that cannot be made": Row(
        "plait.cache(folder / 'file')",
        ProgramCacheError,
        ("cannot use the folder", r"at +\S+file"),
        setup=FOLDER + "(folder / 'file').write_text('')\n",
    ),
}
