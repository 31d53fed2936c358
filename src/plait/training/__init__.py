"""Training: the training loop, the optimizer, metrics, EMA, loss scaling, and resumable batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .accumulation import accumulated_value_and_grad as accumulated_value_and_grad
    from .batches import Batches as Batches
    from .callbacks import CallbackInfo as CallbackInfo, EarlyStop as EarlyStop
    from .ema import warm_up_decay as warm_up_decay
    from .loggers import JsonLines as JsonLines, Logger as Logger, TensorBoard as TensorBoard
    from .loop import fit as fit
    from .prefetching import prefetch as prefetch
    from .run import FitResult as FitResult
    from .trackers import ClearML as ClearML, MLflow as MLflow, WeightsAndBiases as WeightsAndBiases

_NAMES = {
    "accumulation": "accumulated_value_and_grad",
    "batches": "Batches",
    "callbacks": "EarlyStop CallbackInfo",
    "ema": "warm_up_decay",
    "loggers": "JsonLines Logger TensorBoard",
    "loop": "fit",
    "prefetching": "prefetch",
    "run": "FitResult",
    "trackers": "ClearML MLflow WeightsAndBiases",
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = __dir__()  # pyright: ignore[reportUnsupportedDunderAll]
