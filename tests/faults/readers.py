"""Every reader of files that anybody may have made, and ways to damage what it reads.

A row writes something intact into a folder, and reads it. ``damaged`` changes one thing in that folder: bytes, a value
in JSON or msgpack, or what kind of thing a file is.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import onnx.helper
import orbax.checkpoint as ocp
import xxhash
from flax import serialization

import plait
from plait import checkpoint, convert
from plait.training import JsonLines

MANIFEST = "plait.json"
WEIGHTS = {"fc.weight": np.arange(6, dtype=np.float32).reshape(3, 2), "fc.bias": np.zeros(3, np.float32)}


@dataclasses.dataclass(frozen=True)
class Reader:
    """A row.

    Args:
        write: writes what is read below a folder.
        read: what it says of that folder, as data that can be compared.
        seal: gives what was changed the right checksums. Without it nothing tells a changed value from a stored one.
        is_summed: whether checksums find any change.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    seal: Callable[[Path], object] | None = None
    is_summed: bool = False


def model() -> Any:
    return plait.Dict(fc=plait.Linear(2, 3, rngs=plait.Rngs(0)), stack=plait.Stack(_layer, 2))


def _layer(rngs: Any = None) -> Any:
    return plait.Linear(2, 2, rngs=plait.Rngs(1))


class Position:
    """An iterator that takes any position."""

    state: Any = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return 0

    def get_state(self) -> Any:
        return {"epoch": 1, "index": [2, 3]}

    def set_state(self, state: Any) -> None:
        self.state = state


def values(tree: Any) -> Any:
    """The leaves as data that ``==`` compares."""
    flat, _ = jax.tree.flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), *_plain(leaf)) for path, leaf in flat]


def _plain(leaf: Any) -> Any:
    leaf = leaf.read() if hasattr(leaf, "read") else leaf
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.dtype.name, array.shape, array.tobytes()


def unchanged(target: Any, act: Callable[[], object]) -> Any:
    """The values of a model after an act; if that fails, the model must be as it was."""
    before = values(plait.state(target)), repr(target)
    try:
        act()
    except BaseException:
        assert (values(plait.state(target)), repr(target)) == before, "the model was changed"
        raise
    return values(plait.state(target))


def _restored(folder: Path) -> Any:
    target, data = model(), Position()
    return unchanged(target, lambda: checkpoint.restore(folder / "x", {"model": target, "data": data})), data.state


def _newest(folder: Path) -> Any:
    target = model()
    checkpoint.latest(folder)
    checkpoint.read_manifest(folder / "x")
    with checkpoint.Checkpoints(folder) as all_of_them:
        kept = [(each.step, dict(each.metrics)) for each in all_of_them.all()]
        checkpoint.Keep(best=1, metric="loss", hours=1).chosen(all_of_them.all())
        return kept, unchanged(target, lambda: all_of_them.restore({"model": target}, partial=True))


def _save(folder: Path) -> None:
    objects = {"model": model(), "data": Position()}
    checkpoint.save(folder / "x", objects, step=3, metrics={"loss": 0.5}, extra={"note": ["x"]})


def _converted(name: str, layout: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        target = plait.Dict(fc=plait.Linear(2, 3, rngs=plait.Rngs(0)))
        return unchanged(target, lambda: convert.convert_checkpoint(folder / name, target, layout=layout, update=True))

    return read


def _tree() -> Any:
    return {"fc": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}


def _orbax(folder: Path) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save((folder / "x").absolute(), _tree())


def _adapted() -> Any:
    return plait.Dict(fc=plait.Linear(2, 3, rngs=plait.Rngs(0)), fd=plait.Linear(2, 3, rngs=plait.Rngs(0)))


def _peft(folder: Path) -> None:
    target = _adapted()
    for rank, name in ((1, "fc"), (2, "fd")):
        plait.add_lora(plait.select(target, name), rank, alpha=rank, rngs=plait.Rngs(rank))
    convert.save_peft(folder / "x", target)


def _load_peft(folder: Path) -> Any:
    target = _adapted()
    return unchanged(target, lambda: convert.load_peft(folder / "x", target))


def _export(*formats: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        net = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.relu)
        plait.export.save(net, folder / "x", inputs=("batch", 2), formats=formats)

    return write


def _loaded(folder: Path) -> Any:
    """Not called: a sealed program is code."""
    function: Any = plait.export.load(folder / "x")
    return function.signature["inputs"], values(function.state)


def _described(folder: Path) -> Any:
    return [
        (repr(dataclasses.replace(each, stored=list)), [(array.tensor, _plain(array)) for array in each.stored()])
        for each in plait.export.describe_exports(folder / "x")
    ]


def _explored(name: str = "x") -> Callable[[Path], Any]:
    return lambda folder: plait.explore(folder / name, to=folder.parent / "page.html").read_bytes()


def _onnx(folder: Path) -> None:
    """With weights of each form: raw, typed, and in a file of their own."""
    raw = onnx.numpy_helper.from_array(np.ones(4, np.float32), "fc.raw")
    typed = onnx.helper.make_tensor("fc.typed", onnx.TensorProto.INT32, [2, 1], [1, 2])
    apart = onnx.helper.make_tensor("fc.apart", onnx.TensorProto.FLOAT, [2], np.ones(2, np.float32).tobytes(), raw=True)
    onnx.external_data_helper.set_external_data(apart, "x.data", 0, 8)
    apart.ClearField("raw_data")
    (folder / "x").mkdir()
    (folder / "x" / "x.data").write_bytes(np.ones(2, np.float32).tobytes())
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4])
    node = onnx.helper.make_node("Identity", ["fc.raw"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [y], [raw, typed, apart])
    (folder / "x" / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())


def _compile(folder: Path) -> None:
    plait.jit(_double).lower(jnp.ones(2)).compile().save(folder / "x.bin")


def _double(x: Any) -> Any:
    return 2 * x


def _log(folder: Path) -> None:
    log = JsonLines(folder / "x.jsonl")
    for step in (1, 2, 3):
        log.write(step, {"loss": 0.5})
    log.close()


def _logged(folder: Path) -> Any:
    log = JsonLines(folder / "x.jsonl")
    log.write(4, {"loss": 0.5})
    log.close()
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def _seal_checkpoint(folder: Path) -> None:
    """The sizes and sums of the files, and that of the manifest."""
    file = folder / "x" / MANIFEST
    stored = json.loads(file.read_bytes())
    for name, found in stored["files"].items():
        content = (folder / "x" / name).read_bytes() if (folder / "x" / name).is_file() else b""
        found[:] = [len(content), xxhash.xxh3_128(content).hexdigest()]
    stored.pop("sha256", None)
    stored["sha256"] = hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(stored))


def _seal_bundle(folder: Path) -> None:
    file = folder / "x" / "stablehlo" / "manifest.json"
    stored = json.loads(file.read_bytes())
    for name, found in stored["files"].items():
        if (file.parent / name).is_file():
            found["sha256"] = hashlib.sha256((file.parent / name).read_bytes()).hexdigest()
    file.write_text(json.dumps(stored))


def _safetensors(folder: Path) -> None:
    checkpoint.save_safetensors(folder / "x.safetensors", WEIGHTS)


def _msgpack(folder: Path) -> None:
    tree = {"params": {"fc": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}}
    (folder / "x.msgpack").write_bytes(serialization.to_bytes(tree))


READERS = {
    "restore": Reader(_save, _restored, _seal_checkpoint, is_summed=True),
    "Checkpoints": Reader(_save, _newest, _seal_checkpoint),
    "load_state": Reader(_save, lambda folder: values(checkpoint.load_state(folder / "x")), _seal_checkpoint),
    "load_safetensors": Reader(
        _safetensors, lambda folder: values(checkpoint.load_safetensors(folder / "x.safetensors"))
    ),
    "load_safetensors of shards": Reader(
        lambda folder: checkpoint.save_safetensors(folder / "x", WEIGHTS, shard_bytes=10),
        lambda folder: values(checkpoint.load_safetensors(folder / "x")),
    ),
    "convert_checkpoint of safetensors": Reader(_safetensors, _converted("x.safetensors", "torch")),
    "convert_checkpoint of msgpack": Reader(_msgpack, _converted("x.msgpack", "linen")),
    "convert_checkpoint of Orbax": Reader(_orbax, _converted("x", "nnx")),
    "load_peft": Reader(_peft, _load_peft),
    "export.load": Reader(_export("stablehlo"), _loaded, _seal_bundle, is_summed=True),
    "describe StableHLO": Reader(_export("stablehlo"), _described, _seal_bundle),
    "describe SavedModel": Reader(_export("saved_model"), _described),
    "describe ONNX": Reader(_onnx, lambda folder: _described_file(folder / "x" / "model.onnx")),
    "describe LiteRT": Reader(_export("litert"), _described),
    "explore a checkpoint": Reader(_save, _explored(), _seal_checkpoint),
    "explore safetensors": Reader(_safetensors, _explored("x.safetensors")),
    "explore Orbax": Reader(_orbax, _explored()),
    "explore StableHLO": Reader(_export("stablehlo"), _explored(), _seal_bundle),
    "explore SavedModel": Reader(_export("saved_model"), _explored()),
    "explore ONNX": Reader(_onnx, _explored()),
    "explore LiteRT": Reader(_export("litert"), _explored()),
    "load_compiled": Reader(
        _compile, lambda folder: _plain(plait.load_compiled(folder / "x.bin")(jnp.ones(2))), is_summed=True
    ),
    "JsonLines": Reader(_log, _logged),
}


def _described_file(file: Path) -> Any:
    (each,) = plait.export.describe_exports(file)
    return repr(dataclasses.replace(each, stored=list)), [(array.tensor, _plain(array)) for array in each.stored()]


# Damage ---------------------------------------------------------------------------------------------------------------

DEEP = json.loads("[" * 300 + "]" * 300)
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, float("nan"), float("inf"), "", "x", "3",
    "float32", "LORA", "none", ".", "..", "../x", "/etc/passwd", "a\0b", "\ud800", "é" * 300, "." * 20_000,
    "a" + ".a" * 9_000, "[" * 9_000 + "]" * 9_000,
    "blocks[0:999999999999].k", r"(\w+\w+)+!", "(", "fc", [], {}, [0], ["x"], [2**40, 2**40],
    {"a": 1}, {"": {}}, DEEP,
)  # fmt: skip


def damage(folder: Path, draw: random.Random) -> str:
    """Change one thing in a folder. Returns what."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = draw.choice(files)
    if draw.random() < 0.04:
        how = draw.choice(sorted(KINDS))
        file.unlink()
        KINDS[how](file)
        return f"{how} at {file.relative_to(folder)}"
    content = file.read_bytes()
    changed = _changed_values(content, draw) if draw.random() < 0.7 else None
    how = "bytes" if changed is None else "values"
    file.write_bytes(_changed_bytes(content, draw) if changed is None else changed)
    return f"{how} of {file.relative_to(folder)}"


def _sparse(file: Path) -> None:
    with open(file, "wb") as stream:
        stream.truncate(2**42)


KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda file: None,
    "an empty file": lambda file: file.touch(),
    "a folder": lambda file: file.mkdir(),
    "a pipe": os.mkfifo,
    "a link to a device": lambda file: file.symlink_to("/dev/zero"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a link to a folder": lambda file: file.symlink_to(".."),
}


def _changed_bytes(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(len(data) or 1)
        part = draw.randint(1, 30)
        match draw.randrange(6):
            case 0 | 1 if data:
                data[place] = draw.randrange(256)
            case 2:
                del data[place : place + part]
            case 3:
                data[place:place] = data[place : place + part]
            case 4:
                data[place:place] = draw.choice([b"9" * 18, b"-1", b"null", b"{", b"[" * 3_000, b'"..', b"1e999"])
            case _:
                del data[draw.randrange(len(data) + 1) :]
    return bytes(data)


def _changed_values(content: bytes, draw: random.Random) -> bytes | None:
    """With a value of the JSON or msgpack changed; ``None`` if there is neither."""
    line = content.find(b"\n") + 1
    header = 8 + int.from_bytes(content[:8], "little")
    with contextlib.suppress(ValueError, RecursionError):  # JSON
        return json.dumps(_changed(json.loads(content), draw)).encode()
    with contextlib.suppress(ValueError, RecursionError):  # safetensors
        changed = json.dumps(_changed(json.loads(content[8:header]), draw)).encode()
        return len(changed).to_bytes(8, "little") + changed + content[header:]
    with contextlib.suppress(ValueError, RecursionError):  # the second of two lines, before bytes
        end = content.index(b"\n", line)
        return content[:line] + json.dumps(_changed(json.loads(content[line:end]), draw)).encode() + content[end:]
    with contextlib.suppress(Exception):  # the errors of msgpack are of many kinds
        return msgpack.packb(_changed(msgpack.unpackb(content, strict_map_key=False), draw))
    return None


def _changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, msgpack.ExtType) and draw.random() < 0.9:
        inside = _changed(msgpack.unpackb(value.data, raw=False), draw)
        return msgpack.ExtType(value.code if draw.random() < 0.9 else draw.randrange(5), msgpack.packb(inside))
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.1:
        return draw.choice(HOSTILE)
    copy: Any = value.copy()
    key = draw.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    chance = draw.random()
    if chance < 0.1:
        del copy[key]
    elif chance < 0.2 and isinstance(copy, dict):
        copy[str(draw.choice(HOSTILE))] = copy.pop(key)
    elif chance < 0.25 and isinstance(copy, dict):
        copy[str(draw.choice(HOSTILE))] = copy[key]
    else:
        copy[key] = _changed(copy[key], draw)
    return copy


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a folder."""
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)
