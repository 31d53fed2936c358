"""Examples in documents: Python blocks of pages with the output they promise, and docstring examples."""

import ast
import contextlib
import dataclasses
import doctest
import importlib.util
import io
import linecache
import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "plait"
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclasses.dataclass(frozen=True)
class Block:
    """A Python block of a page. ``output`` is what it must print, or None where the page does not say.

    ``needs`` is a library that the page says it needs, as in ``python needs-lineax``.
    """

    page: Path
    line: int
    code: str
    output: str | None
    needs: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The Python blocks of a page, in order. A text block that follows at once is a block's output."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    blocks = []
    for index, fence in enumerate(fences):
        match fence["info"].split():
            case ["python"]:
                needs = None
            case ["python", word] if word.startswith("needs-"):
                needs = word.removeprefix("needs-")
            case _:  # "python no-run"
                continue
        output = None
        if index + 1 < len(fences):
            follower = fences[index + 1]
            if follower["info"].strip() == "text" and not text[fence.end() : follower.start()].strip():
                output = dedented(follower)
        blocks.append(Block(page, text.count("\n", 0, fence.start("body")) + 1, dedented(fence), output, needs))
    return blocks


def dedented(fence: re.Match[str]) -> str:
    return re.sub(f"^{fence['indent']}", "", fence["body"], flags=re.MULTILINE)


def is_there(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def run_page(page: Path) -> tuple[int, list[Block]]:
    """Run a page's blocks in one namespace, as a reader would: how many ran, and those whose library is missing."""
    module = types.ModuleType(re.sub(r"\W", "_", f"page_{page.stem}"))
    sys.modules[module.__name__] = module  # classes of the page can then be pickled, and be dataclasses
    try:
        blocks = blocks_of(page)
        left_out = [block for block in blocks if block.needs is not None and not is_there(block.needs)]
        for block in blocks:
            if block not in left_out:
                run_block(block, module)
        return len(blocks) - len(left_out), left_out
    finally:
        del sys.modules[module.__name__]


def run_block(block: Block, module: types.ModuleType) -> None:
    source = "\n" * (block.line - 1) + block.code  # so that a traceback gives the page's own line numbers
    name = f"<{block.where}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    printed = io.StringIO()
    try:
        code = compile(source, name, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed), _as_a_library_needs_it(block.needs):
            exec(code, module.__dict__)
    except Exception as error:
        raise AssertionError(f"{block.where}: the block raises {type(error).__name__}: {error}") from error
    if block.output is not None:
        check_output(block, printed.getvalue())


@contextlib.contextmanager
def _as_a_library_needs_it(library: str | None) -> Iterator[None]:
    """Other libraries promote dtypes and ranks without saying so, and warn of what JAX will change."""
    if library is None:
        yield
        return
    import jax

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def check_output(block: Block, printed: str) -> None:
    example = doctest.Example(block.code, block.output or "")
    checker = doctest.OutputChecker()
    if not checker.check_output(example.want, printed, FLAGS):
        difference = checker.output_difference(example, printed, FLAGS)
        raise AssertionError(f"{block.where}: the block prints something else\n{difference}")


def docstring_examples(file: Path) -> list[doctest.DocTest]:
    """One doctest for each docstring of a file that holds examples, found without importing the file."""
    parser = doctest.DocTestParser()
    found = []
    for name, node in documented_nodes(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        docstring = ast.get_docstring(node, clean=True)
        if docstring and ">>>" in docstring:
            line = node.body[0].lineno - 1
            label = ".".join([*file.relative_to(SOURCE).with_suffix("").parts, name]).removesuffix(".")
            found.append(parser.get_doctest(docstring, {}, label, str(file), line))
    return found


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented_nodes(node: Documented, name: str = "") -> Iterator[tuple[str, Documented]]:
    yield name, node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from documented_nodes(child, f"{name}.{child.name}".lstrip("."))


def run_docstring(test: doctest.DocTest) -> None:
    """Run the examples of one docstring with the names that every docstring may take for granted."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import plait

    test.globs.update(plait=plait, nnx=plait, jax=jax, jnp=jnp, np=np, __name__="docstring")
    if any("optax" in example.source for example in test.examples):
        import optax

        test.globs["optax"] = optax
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(test, out=report.write)
    if runner.failures:
        raise AssertionError(f"the example of plait.{test.name} does not hold\n{report.getvalue()}")
