"""Training: the training loop, the optimizer, metrics, EMA, loss scaling, and resumable batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .accumulation import accumulated_value_and_grad as accumulated_value_and_grad
    from .ema import warm_up_decay as warm_up_decay
    from .loop.batches import Batches as Batches
    from .loop.callbacks import CallbackInfo as CallbackInfo, EarlyStop as EarlyStop
    from .loop.fit import fit as fit
    from .loop.loggers import JsonLines as JsonLines, Logger as Logger, TensorBoard as TensorBoard
    from .loop.prefetching import prefetch as prefetch
    from .loop.run import FitResult as FitResult

_NAMES = {
    "accumulation": "accumulated_value_and_grad",
    "loop.batches": "Batches",
    "loop.callbacks": "EarlyStop CallbackInfo",
    "ema": "warm_up_decay",
    "loop.loggers": "JsonLines Logger TensorBoard",
    "loop.fit": "fit",
    "loop.prefetching": "prefetch",
    "loop.run": "FitResult",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
