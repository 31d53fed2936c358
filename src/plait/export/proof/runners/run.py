"""Run an exported file on the inputs of a folder: CODE MODEL FOLDER SIGNATURE.

CODE is the file of the model's format. Only its function ``run`` is executed, from its source, since the rest of the
file needs plait.
"""

import __future__

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

code, model, folder, signature = sys.argv[1:5]
tree = ast.parse(Path(code).read_text(encoding="utf-8"), code)
tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
own = {"__file__": code}
exec(compile(tree, code, "exec", __future__.annotations.compiler_flag), own)
run_all(folder, *own["run"](model, signature or None))  # pyright: ignore[reportCallIssue]
