"""Families of published models: how a ``config.json`` becomes the settings of a model, and how its weights are named.

A reader takes every key of a config: it is read, or has no effect on what the model computes, or has a value that is
supported. What is left at the end is an error, so a model never computes something else than its config says.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp

from ..convert.layouts import Piece
from ..core.nodes.module import Module
from ..errors import ConversionError
from ..typing import Array

_REQUIRED: Any = object()

_exact = functools.partial(jax.nn.gelu, approximate=False)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _exact, "gelu_python": _exact, "gelu_new": jax.nn.gelu, "gelu_fast": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu, "gelu_python_tanh": jax.nn.gelu, "mish": jax.nn.mish, "relu": jax.nn.relu,
    "relu6": jax.nn.relu6, "relu2": lambda x: jnp.square(jax.nn.relu(x)), "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu, "swish": jax.nn.silu, "tanh": jnp.tanh, "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
}  # fmt: skip
"""The activations of configs, by name."""

# Keys of every config that do not change what a model computes in evaluation mode.
_WITHOUT_EFFECT = (
    "_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "dtype", "eos_token_id", "finetuning_task",
    "id2label", "initializer_range", "label2id", "model_type", "num_labels", "output_attentions",
    "output_hidden_states", "output_past", "pad_token_id", "prefix", "problem_type", "return_dict", "sep_token_id",
    "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16",
    "use_cache",
    # settings of generating, which older versions wrote into this file
    "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "temperature", "tf_legacy_loss", "top_k", "top_p", "typical_p",
)  # fmt: skip

# Keys of every config of which one value is supported.
_ONLY: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False, None),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False, None),
}


_SIZES = (
    "dim", "head_dim", "hidden_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "n_embd", "n_head",
    "n_heads", "n_layer", "n_layers", "n_positions", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "vocab_size",
)  # fmt: skip


class Config:
    """The keys of a ``config.json``, each of which must be taken.

    Args:
        values: the keys and their values.
        place: where they are, for errors.

    Example:
        >>> from plait.models.family import Config
        >>> config = Config({"hidden_size": 8, "use_bias": True}, "config.json")
        >>> config.take("hidden_size", int), config.take("num_layers", int, 2)
        (8, 2)
        >>> config.finish()
        Traceback (most recent call last):
        ...
        plait.errors.ConversionError: a config has a setting that plait does not know
          at        config.json
          found     use_bias: True
          expected  settings of the family None that plait supports
          do        use the library that the model was published for
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place
        self._left = set(values)

    def take(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        """The value of a key.

        Args:
            key: the key.
            kind: its type, or a tuple of types, with ``NoneType`` if it may be null; ``float`` accepts whole numbers,
                ``int`` no booleans.
            default: what an absent key means; without it the key must be there.

        Raises:
            ConversionError: the key is required and absent, or its value has another type.
        """
        self._left.discard(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if key not in self.values and default is not _REQUIRED:
            return default
        value = self.values.get(key)
        if key in self.values and (type(value) in kinds or (float in kinds and type(value) is int)):
            if type(value) is float and not math.isfinite(value):
                raise self.error(key, "a finite number")
            if key in _SIZES and type(value) is int and value < 1:
                raise self.error(key, "a number from 1 on")
            return value
        raise self.error(key, " or ".join("null" if each is NoneType else each.__name__ for each in kinds))

    def only(self, key: str, *supported: Any) -> None:
        """Take a key of which plait supports some values; absent, it is one of them.

        Raises:
            ConversionError: it has another value.
        """
        self._left.discard(key)
        if key in self.values and not _is_among(self.values[key], supported):
            raise self.error(key, " or ".join(json.dumps(each) for each in supported))

    def ignore(self, *keys: str) -> None:
        """Take keys that do not change what the model computes in evaluation mode."""
        self._left.difference_update(keys)

    def activation(self, key: str, default: Any = _REQUIRED) -> str:
        """The name of an activation."""
        name = self.take(key, str, default)
        if name not in ACTIVATIONS:
            raise self.error(key, " or ".join(ACTIVATIONS))
        return name

    def pair(self, key: str, default: int) -> tuple[int, int]:
        """A height and a width, which may be one number."""
        size = self.take(key, (int, list), default)
        pair = [size, size] if isinstance(size, int) else size
        if len(pair) != 2 or not all(type(each) is int and each > 0 for each in pair):
            raise self.error(key, "a whole number from 1 on, or two: height and width")
        return pair[0], pair[1]

    def part(self, key: str) -> Config | None:
        """The object under a key, as a config of its own, which is to be finished too; ``None`` if it is null."""
        value = self.take(key, (dict, type(None)), None)
        return None if value is None else Config(value, f"{key} of {self.place}")

    def finish(self) -> None:
        """Take the keys that every config has.

        Raises:
            ConversionError: a key is left, or one of those has a value that is not supported.
        """
        self.ignore(*_WITHOUT_EFFECT)
        for key, supported in _ONLY.items():
            self.only(key, *supported)
        if self._left:
            raise ConversionError(
                "a config has a setting that plait does not know",
                at=self.place,
                found=", ".join(f"{key}: {self.values[key]!r:.80}" for key in sorted(self._left)),
                expected=f"settings of the family {self.values.get('model_type')} that plait supports",
                do="use the library that the model was published for",
            )

    def error(self, key: str, expected: str) -> ConversionError:
        """The error for the value of a key."""
        found = f"{key}: {self.values[key]!r:.80}" if key in self.values else f"no {key}"
        return ConversionError(
            f"a config has a value of {key} that plait does not support",
            at=self.place,
            found=found,
            expected=expected,
            do="use the library that the model was published for",
        )


def _is_among(value: Any, values: Iterable[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in values)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models, one or several ``model_type``s.

    Args:
        read: takes a ``Config`` and returns the settings of the model, whatever ``make`` and ``names`` take. ``finish``
            is called by its caller.
        make: ``make(settings, *, param_dtype, as_list, remat, rngs)`` returns a ``PublishedModel``.
        names: takes the settings and returns pieces. ``ours`` are names of modules (or variables) of the model, in
            PyTorch's notation and with a list for a ``Stack``; ``theirs`` those of the file; both with ``*`` for
            the number of a layer. A piece stands for each array of these modules, such as ``weight`` and ``bias``; its
            functions take and return them in the layouts of PyTorch, and are needed if one array of the file is several
            of the model. They return views where they can. A piece without ``ours`` names what a model does not need.
        prefix: what the names of a base model begin with in a file with a head, such as ``"model."``; files of base
            models alone lack it.
        in_files: takes the settings and the names in the files, and returns the settings without parts that these
            files lack, such as a pooler.
    """

    read: Callable[[Config], Any]
    make: Callable[..., Any]
    names: Callable[[Any], Sequence[Piece]]
    prefix: str = ""
    in_files: Callable[[Any, Collection[str]], Any] = lambda settings, names: settings


class PublishedModel(Module):
    """Base of the models that ``load`` makes.

    Attributes:
        settings: what the config says, as the family's ``read`` returns it.
        config_json: the text of the ``config.json`` that it was made from.
        generation_json: the text of its ``generation_config.json``; ``None`` without one.
    """

    settings: Any
    config_json: str
    generation_json: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The ``config.json`` that the model was made from."""
        return json.loads(self.config_json)

    @property
    def stop(self) -> tuple[int, ...]:
        """The tokens that end a text: ``plait.generate(model, tokens, 100, stop=model.stop)``."""
        texts = (self.generation_json, self.config_json)
        found = (json.loads(text).get("eos_token_id") for text in texts if text is not None)
        stop = next((each for each in found if each is not None), ())
        return (stop,) if isinstance(stop, int) else tuple(stop)
