"""Draws models and adapters, reads folders that plait wrote, alters tensors. Needs torch, transformers and PEFT.

python -m tests.models.oracle draw FOLDER [PATTERN ...]    a folder for each case, with expected.npz
                                            (--odd for cases that plait may refuse, --sample for tests/data/models)
python -m tests.models.oracle alter FOLDER [PATTERN ...]          altered.json: how far each tensor moves the result
python -m tests.models.oracle adapt FOLDER [PATTERN ...]          adapter: PEFT's, with what the model gives then
python -m tests.models.oracle read SAVED DRAWN                    whether folders that plait wrote give what was drawn
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import shutil
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from .cases import BASES, CASES, ENCODERS, SAMPLE, VISIONS, Case, odd_cases

LENGTHS = (12, 7, 4)
STEPS = 8
POOLED = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "vit": "ViTModel",
}  # with a layer for what they pool
Arrays = dict[str, np.ndarray]


def draw(case: Case, folder: Path) -> None:
    """Write a model and what it gives."""
    torch.manual_seed(zlib.crc32(case.name.encode()))
    config = transformers.AutoConfig.for_model(case.family, **case.settings)
    kind = _class(case)
    options = {"add_pooling_layer": False} if case.head == "without pooler" else {}
    model = kind.from_config(config, **options) if kind.__name__.startswith("Auto") else kind(config)
    _draw_weights(model)
    model = model.to(getattr(torch, case.dtype)).eval()
    model.generation_config = None if not hasattr(model, "generation_config") else model.generation_config
    model.save_pretrained(folder, max_shard_size=case.shard_size)
    if case.head == "gamma and beta":
        file = folder / "model.safetensors"
        older = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in load_file(file).items()
        }
        save_file(older, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key, value in case.edit.items():
        config.pop(key, None)
        if value is not None:
            config[key] = None if value == "null" else value
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    expected = results(read(folder, case.family, case.head), case.family)
    np.savez_compressed(folder / "expected.npz", **expected)
    (folder / "case.json").write_text(json.dumps({"family": case.family, "head": case.head, "edit": sorted(case.edit)}))


def _class(case: Case) -> Any:
    if hasattr(transformers, case.head or " "):
        return getattr(transformers, case.head)
    encodes = case.family in (*ENCODERS, *VISIONS)
    return transformers.AutoModel if encodes else transformers.AutoModelForCausalLM


@torch.no_grad()
def _draw_weights(model: torch.nn.Module) -> None:
    """Weights of a visible scale, norms and biases too, so that each setting and tensor moves the result."""
    for name, value in sorted(model.named_parameters()):
        noise = torch.randn(value.shape)
        if value.ndim == 1 and ("norm" in name.lower() or "ln_" in name or "lambda" in name) and "bias" not in name:
            value.copy_(1 + 0.3 * noise)
        elif value.ndim == 1:
            value.copy_(0.3 * noise)
        elif "embed" in name or "wte" in name or "wpe" in name or "token" in name:
            value.copy_(0.7 * noise)
        else:
            value.copy_(1.5 * noise / np.sqrt(np.prod(value.shape[1:])))


def read(folder: Path, family: str, head: str) -> Any:
    """The model of a folder; an error if a tensor is missing or of another shape."""
    case = Case(family, "", {}, head=head)
    kind = _class(case)
    if head in ("GPT2Model", "LlamaModel"):
        kind = transformers.AutoModelForCausalLM
    elif head == "without pooler":
        kind = getattr(transformers, POOLED[family])
    options = {"add_pooling_layer": False} if head == "without pooler" else {}
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **options
    )
    wrong = {name: info[name] for name in ("missing_keys", "mismatched_keys", "unexpected_keys") if info.get(name)}
    if wrong:
        raise ValueError(f"{folder.name}: {wrong}")
    return model.eval()


@torch.no_grad()
def results(model: Any, family: str) -> Arrays:
    if family in VISIONS:
        return _of_images(model, family)
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, model.config.vocab_size, (len(LENGTHS), max(LENGTHS)))
    return (_of_texts if family in ENCODERS else _of_prompts)(model, tokens)


def _of_prompts(model: Any, tokens: np.ndarray) -> Arrays:
    """Logits of whole rows; greedy tokens after prompts of ragged lengths, each alone."""
    logits = model(torch.tensor(tokens)).logits
    continued, margins = [], []
    for row, length in zip(tokens, LENGTHS, strict=True):
        row = list(row[:length])
        margins.append([])
        for _ in range(STEPS):  # without a cache, so that every step is a plain call
            last = model(torch.tensor([row]), use_cache=False).logits[0, -1]
            best = last.topk(2).values
            margins[-1].append(float(best[0] - best[1]))
            row.append(int(last.argmax()))
        continued.append(row[length:])
    cached = _generated(model, tokens)
    return {
        "tokens": tokens.astype(np.int32), "lengths": np.array(LENGTHS), "logits": logits.numpy(),
        "greedy": np.array(continued), "margins": np.array(margins), "generated": cached,
    }  # fmt: skip


def _generated(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Greedy tokens of ``generate`` from prompts padded on the left."""
    padded = np.zeros_like(tokens)
    mask = np.zeros_like(tokens)
    for row, length in enumerate(LENGTHS):
        padded[row, -length:], mask[row, -length:] = tokens[row, :length], 1
    model.generation_config.eos_token_id = None
    setting = transformers.GenerationConfig(max_new_tokens=STEPS, do_sample=False, eos_token_id=None, pad_token_id=0)
    out = model.generate(torch.tensor(padded), attention_mask=torch.tensor(mask), generation_config=setting)
    return out[:, max(LENGTHS) :].numpy()


def _of_texts(model: Any, tokens: np.ndarray) -> Arrays:
    """Hidden states without a mask, padded on the right and on the left, and with segments."""
    config = model.config
    base = model.base_model
    kept = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    pad = getattr(config, "pad_token_id", None) or 0
    rng = np.random.default_rng(2)
    types = rng.integers(0, getattr(config, "type_vocab_size", 1), tokens.shape)
    right, left = np.where(kept, tokens, pad), np.where(kept[:, ::-1], tokens, pad)
    calls = {
        "plain": (tokens, None, None), "right": (right, kept, None), "left": (left, kept[:, ::-1], None),
        "pads": (right, None, None),  # padding without a mask
    }  # fmt: skip
    if getattr(config, "type_vocab_size", 0):
        calls["typed"] = (right, kept, types)
    arrays: Arrays = {}
    for name, (ids, mask, segments) in calls.items():
        options = {} if segments is None else {"token_type_ids": torch.tensor(segments)}
        mask = None if mask is None else mask.copy()
        out = base(torch.tensor(ids), None if mask is None else torch.tensor(mask).long(), **options)
        arrays[f"{name}.tokens"] = ids.astype(np.int32)
        arrays[f"{name}.hidden"] = out.last_hidden_state.numpy()
        if mask is not None:
            arrays[f"{name}.mask"] = mask
        if segments is not None:
            arrays[f"{name}.segments"] = segments.astype(np.int32)
        if getattr(out, "pooler_output", None) is not None:
            arrays[f"{name}.pooled"] = out.pooler_output.numpy()
    return arrays


def _of_images(model: Any, family: str) -> Arrays:
    """Hidden states of images; of another size too, with positions interpolated. Stored with channels last."""
    config, base = model.config, model.base_model
    size = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
    patch = config.patch_size if isinstance(config.patch_size, (list, tuple)) else (config.patch_size,) * 2
    sizes = {"plain": tuple(size), "other": (size[0] + patch[0], size[1] + 2 * patch[1])}
    sizes["smaller"] = (size[0] - patch[0], size[1] - patch[1])
    arrays: Arrays = {}
    for name, (height, width) in sizes.items():
        images = np.random.default_rng(3).normal(size=(2, height, width, config.num_channels)).astype(np.float32)
        options = {"interpolate_pos_encoding": True} if name != "plain" and family == "vit" else {}
        try:
            out = base(torch.tensor(images).permute(0, 3, 1, 2), **options)
        except RuntimeError:  # positions of an image that is not square cannot be interpolated
            if name == "plain":
                raise
            continue
        arrays[f"{name}.images"], arrays[f"{name}.hidden"] = images, out.last_hidden_state.numpy()
        if getattr(out, "pooler_output", None) is not None:
            arrays[f"{name}.pooled"] = out.pooler_output.numpy()
    if getattr(base.embeddings, "mask_token", None) is not None:
        images = arrays["plain.images"]
        seen = np.random.default_rng(4).random((2, size[0] // patch[0] * (size[1] // patch[1]))) < 0.6
        out = base(torch.tensor(images).permute(0, 3, 1, 2), bool_masked_pos=torch.tensor(~seen))
        arrays["masked.images"], arrays["masked.mask"] = images, seen
        arrays["masked.hidden"] = out.last_hidden_state.numpy()
    return arrays


def outcome(arrays: Arrays) -> np.ndarray:
    """What altered tensors should move."""
    parts = [arrays[name] for name in ("logits", "plain.hidden", "typed.hidden", "plain.pooled") if name in arrays]
    return np.concatenate([part.ravel() for part in parts])


def alter(folder: Path) -> None:
    """The largest change of the result when each tensor in turn is ``1.25 * tensor + 0.1``."""
    case = json.loads((folder / "case.json").read_text())
    base = outcome(np.load(folder / "expected.npz"))
    changes = {}
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / folder.name
        shutil.copytree(folder, other)
        for file in sorted(other.glob("*.safetensors")):
            tensors = load_file(file)
            for name, value in tensors.items():
                save_file({**tensors, name: 1.25 * value.float() + 0.1}, file, {"format": "pt"})
                changes[name] = outcome(_plain(read(other, case["family"], case["head"]), case["family"])) - base
            save_file(tensors, file, {"format": "pt"})
    largest = {name: float(np.abs(change).max()) for name, change in changes.items()}
    (folder / "altered.json").write_text(json.dumps(largest, indent=1))


@torch.no_grad()
def _plain(model: Any, family: str) -> Arrays:
    if family in VISIONS or family in ENCODERS:
        return results(model, family)
    tokens = np.random.default_rng(1).integers(3, model.config.vocab_size, (len(LENGTHS), max(LENGTHS)))
    return {"logits": model(torch.tensor(tokens)).logits.numpy()}


def adapt(folder: Path) -> None:
    """An adapter of PEFT for all linear layers, with what the model gives then, in a folder beside the weights."""
    import peft

    case = json.loads((folder / "case.json").read_text())
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(read(folder, case["family"], case["head"]), config).eval()
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    with torch.no_grad():
        found = model(torch.tensor(np.load(folder / "expected.npz")["tokens"])).logits.numpy()
    np.savez_compressed(folder / "adapter" / "expected.npz", logits=found)


def differences(saved: Path, drawn: Path) -> Iterator[tuple[str, float]]:
    """For each folder in ``saved``, how far its results are from those drawn, beside their largest."""
    for folder in sorted(path.parent for path in saved.glob("*/config.json")):
        case = json.loads((drawn / folder.name / "case.json").read_text())
        arrays = np.load(drawn / folder.name / "expected.npz")
        expected, head = outcome(arrays), case["head"]
        if "For" in head:  # the base model is what plait has read and written
            lacks_pooler = case["family"] in POOLED and "plain.pooled" not in arrays
            head = "without pooler" if lacks_pooler else ""
        try:
            found = outcome(_plain(read(folder, case["family"], head), case["family"]))
        except Exception as error:
            print(folder.name, error)
            yield folder.name, float("inf")
            continue
        yield folder.name, float(np.abs(found - expected).max() / np.abs(expected).max())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.oracle", description=__doc__)
    parser.add_argument("mode", choices=("draw", "alter", "adapt", "read"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--sample", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    if arguments.mode == "read":
        wrong = [
            (name, error) for name, error in differences(arguments.folder, Path(arguments.rest[0])) if not error < 1e-4
        ]
        print(*wrong, sep="\n")
        return bool(wrong)
    patterns = arguments.rest or ["*"]
    if arguments.mode in ("alter", "adapt"):
        for folder in sorted(path.parent for path in arguments.folder.glob("*/case.json")):
            if any(fnmatch.fnmatch(folder.name, pattern) for pattern in patterns) and "-odd-" not in folder.name:
                (alter if arguments.mode == "alter" else adapt)(folder)
        return 0
    cases = SAMPLE if arguments.sample else _odd_cases() if arguments.odd else CASES
    failed = 0
    for each in cases:
        if not any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns):
            continue
        folder = arguments.folder / each.name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            draw(each, folder)
        except Exception as error:  # what transformers itself refuses
            shutil.rmtree(folder, ignore_errors=True)
            failed += 1
            if not each.odd:
                print(each.name, type(error).__name__, str(error).split("\n")[0][:200])
    print(f"{len(cases)} cases, {failed} refused by transformers")
    return 0


def _odd_cases() -> list[Case]:
    known = {family: transformers.AutoConfig.for_model(family).to_dict() for family in BASES}
    return [each for family in BASES for each in odd_cases(family, known[family])]


if __name__ == "__main__":
    sys.exit(main())
