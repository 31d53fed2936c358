"""Loggers for services that compare runs: Weights & Biases, MLflow, ClearML.

Each starts its run at the first ``write``, so in a multi-process run only process 0 has one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...util.dependencies import require


class WeightsAndBiases:
    """Metrics for Weights & Biases.

    The run starts at the first ``write``. In a multi-process run, process 0 writes it, unless ``every_process``.

    Args:
        every_process: whether ``fit`` lets every process of a run write, each to a run of its own.
        settings: the arguments of ``wandb.init``: ``project``, ``name``, ``config``, … With ``id`` and
            ``resume="allow"`` a program that is started again continues its run; W&B ignores steps that it has.

    Attributes:
        run: the run of wandb, to log other things to it; ``None`` before the first ``write`` and after ``close``.

    Raises:
        MissingDependencyError: wandb is not installed.

    Example:
        >>> log = plait.training.WeightsAndBiases(project="digits", mode="offline")  # doctest: +SKIP
    """

    def __init__(self, *, every_process: bool = False, **settings: Any) -> None:
        self._wandb: Any = require("wandb", extra="wandb", purpose="to log to Weights & Biases")
        self.every_process = every_process
        self.settings = settings
        self.run: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run = self.run or self._wandb.init(**self.settings)
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.finish()


class MLflow:
    """Metrics for MLflow.

    The run starts at the first ``write``. In a multi-process run, process 0 writes it, unless ``every_process``.

    Args:
        experiment: the name of the experiment, which is created if there is none.
        run_name: the name of the run; MLflow chooses one by default.
        run_id: an existing run to continue, when a program is started again.
        tracking_uri: where MLflow stores runs; by default what ``MLFLOW_TRACKING_URI`` or the program says.
        every_process: whether ``fit`` lets every process of a run write, each to a run of its own.

    Attributes:
        run_id: the run, to log other things to it; ``None`` before the first ``write`` of a new run.

    Raises:
        MissingDependencyError: neither mlflow nor mlflow-skinny is installed.

    Example:
        >>> log = plait.training.MLflow("digits", tracking_uri="sqlite:///mlflow.db")  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment: str,
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        tracking_uri: str | None = None,
        every_process: bool = False,
    ) -> None:
        self._mlflow: Any = require("mlflow", extra="mlflow", purpose="to log to MLflow")
        self.experiment, self.run_name, self.run_id = experiment, run_name, run_id
        self.tracking_uri = tracking_uri
        self.every_process = every_process
        self._client: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._client = self._client or self._begin()
        now = int(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _begin(self) -> Any:
        client = self._mlflow.MlflowClient(self.tracking_uri)
        if self.run_id is None:
            found = client.get_experiment_by_name(self.experiment)
            experiment_id = found.experiment_id if found else client.create_experiment(self.experiment)
            self.run_id = client.create_run(experiment_id, run_name=self.run_name).info.run_id
        else:
            client.update_run(self.run_id, status="RUNNING")
        return client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self.run_id)


class ClearML:
    """Metrics for ClearML.

    The task starts at the first ``write``. In a multi-process run, process 0 writes it, unless ``every_process``.
    ``eval/loss`` is the line ``loss`` in the plot ``eval``.

    Args:
        project: the name of the project.
        name: the name of the task.
        every_process: whether ``fit`` lets every process of a run write, each to a task of its own.
        settings: other arguments of ``clearml.Task.init``. By default it connects to no framework and no parser of
            arguments. With ``continue_last_task=0`` a program that is started again continues its task.

    Attributes:
        task: the task of ClearML, to log other things to it; ``None`` before the first ``write`` and after ``close``.

    Raises:
        MissingDependencyError: clearml is not installed.

    Example:
        >>> log = plait.training.ClearML("vision", "digits")  # doctest: +SKIP
    """

    def __init__(self, project: str, name: str, *, every_process: bool = False, **settings: Any) -> None:
        self._clearml: Any = require("clearml", extra="clearml", purpose="to log to ClearML")
        self.every_process = every_process
        own = {"auto_connect_frameworks": False, "auto_connect_arg_parser": False}
        self.settings = {"project_name": project, "task_name": name, **own, **settings}
        self.task: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.task = self.task or self._clearml.Task.init(**self.settings)
        logger = self.task.get_logger()
        for name, value in values.items():
            plot, _, line = name.rpartition("/")
            logger.report_scalar(plot or line, line, value, iteration=step)

    def close(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.close()
