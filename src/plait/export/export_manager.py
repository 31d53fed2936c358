"""Serving signatures of a ``JaxModule``, written as one SavedModel."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, ExportError, PlaitError
from ..util.dependencies import require
from ..util.files import given_path
from .formats.whole_write import ExportPathError, written_whole
from .jax_module import JaxModule
from .program.checks import check_different, check_type
from .serving_config import ServingConfig
from .tensorflow.names import check_names
from .utils import make_e2e_inference_fn

__all__ = ["ExportManager"]
__dir__ = __all__.copy


class ExportManager:
    """Traces the signatures of a module and saves them.

    Args:
        module: the module.
        serving_configs: the signatures to serve.

    Raises:
        ArgumentError: two signatures have the same name, or a signature does not match its method.

    Example:
        >>> manager = ExportManager(module, [ServingConfig("serving_default", signature)])  # doctest: +SKIP
        >>> manager.save("model")  # doctest: +SKIP
    """

    def __init__(self, module: JaxModule, serving_configs: Sequence[ServingConfig]) -> None:
        tf = require("tensorflow", extra="tensorflow", purpose="to export a module")
        advice = "ExportManager(JaxModule(params, apply_fn), [config])"
        check_type("ExportManager takes a JaxModule", module, JaxModule, "a JaxModule", advice)
        self._module = module
        self._tf_module = tf.Module()
        self._tf_module.computation_module = module
        self._tf_module.tf_trackable_resources = [config.extra_trackable_resources for config in serving_configs]
        self._signatures: dict[str, Any] = {}
        keys_of = [config.get_signature_keys() for config in serving_configs]
        named = [(f"config {index}", key) for index, keys in enumerate(keys_of) for key in keys]
        check_different("two signatures have the same name", named, "change signature_key in one of the configs")
        for config, keys in zip(serving_configs, keys_of, strict=True):
            with errors_name_the_signature(keys[0]):
                function = make_e2e_inference_fn(module.methods, config)
            self._signatures |= dict.fromkeys(keys, function)
        if len(serving_configs) == 1:
            self._tf_module.__call__ = self._signatures[serving_configs[0].get_signature_keys()[0]]

    @property
    def tf_module(self) -> Any:
        """The saved object, with the variables and the extra resources. With one config it loads as a callable."""
        return self._tf_module

    @property
    def serving_signatures(self) -> Mapping[str, Any]:
        """The ``tf.function`` of each signature."""
        return dict(self._signatures)

    def save(
        self,
        model_path: str | os.PathLike[str],
        save_options: Any = None,
        signature_overrides: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Write the SavedModel atomically.

        Args:
            model_path: the folder to create. An existing SavedModel is replaced.
            save_options: ``tf.saved_model.SaveOptions``. Gradients are saved if and only if a parameter is trainable.
            signature_overrides: signatures that replace or extend those of the configs.
            overwrite: whether to replace a ``model_path`` that is not a SavedModel.

        Raises:
            ArgumentError: the options have the wrong type, or a parameter's name cannot be saved.
            ExportPathError: the folder cannot be written, or ``model_path`` has other contents.
        """
        tf = require("tensorflow", extra="tensorflow", purpose="to write a SavedModel")
        options = tf.saved_model.SaveOptions() if save_options is None else copy.copy(save_options)
        message, expected = "save_options has the wrong type", "tf.saved_model.SaveOptions or None"
        advice = "ExportManager.save(path, tf.saved_model.SaveOptions())"
        check_type(message, options, tf.saved_model.SaveOptions, expected, advice, kind=ArgumentError)
        check_names(self._module.model_params, self._module.model_param_names)
        options.experimental_custom_gradients = self._module.with_gradient
        signatures = self._signatures | dict(signature_overrides or {})
        target = given_path(model_path, ExportPathError)
        older = (target / "saved_model.pb").is_file()
        with written_whole(target, overwrite=overwrite or older) as draft, _untracked_is_named():
            tf.saved_model.save(self._tf_module, os.fspath(draft), signatures=signatures, options=options)

    def load(self, model_path: str | os.PathLike[str], **kwargs: Any) -> Any:
        """``tf.saved_model.load(model_path, **kwargs)``."""
        tf = require("tensorflow", extra="tensorflow", purpose="to load a SavedModel")
        return tf.saved_model.load(os.path.expanduser(model_path), **kwargs)


@contextlib.contextmanager
def _untracked_is_named() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise ArgumentError(
            "a resource that a processor uses is not saved with the model",
            found=str(error),
            expected="every table, variable and asset of the processors among the extra resources",
            do="ServingConfig(..., extra_trackable_resources=[table])",
        ) from error


@contextlib.contextmanager
def errors_name_the_signature(key: str) -> Iterator[None]:
    """Prefix errors of the body with the signature's name, keeping their type if it can be made from a message."""
    try:
        yield
    except PlaitError as error:
        raise type(error)(f"signature {key!r}: {error.message}", **error.parts) from error
    except Exception as error:
        raise _made_from_text(type(error), f"signature {key!r}: {error}") from error


def _made_from_text(kind: type[Exception], text: str) -> Exception:
    """An error of this class, or of its nearest base that can be made from a message; TensorFlow's cannot."""
    for base in kind.__mro__:
        if base is Exception or not issubclass(base, Exception):
            break
        with contextlib.suppress(TypeError):
            return base(text)
    return ExportError(text, found=kind.__name__)
