"""`hydra/launcher: ray`, which launches trials as tasks of Ray, on this machine or a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from runner.config.spelling import plain_node
from runner.sweeps.launchers import require_extra


class RayLauncher(Launcher):
    """Runs each trial as a task of Ray's.

    Hydra's own launcher for Ray needs a cloudpickle of before 2023 and boto3, and has Ray itself
    repeat a task whose process died; this one needs only Ray, and the sweep retries trials.

    Args:
      init: arguments of `ray.init`, such as `address` of a cluster.
      remote: options of each task, such as `num_cpus` and `num_gpus`.
    """

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self._init, self._remote = plain_node(init), plain_node(remote)
        self._context: HydraContext
        self._task_function: TaskFunction
        self._config: DictConfig

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra passes.

        Raises:
          ConfigError: Ray is not installed.
        """
        require_extra("ray", "hydra/launcher=ray")
        self._context, self._task_function, self._config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs and waits for all of them.

        Raises:
          Exception: Ray's, when a job's process died; the others have ended then.
        """
        import ray

        if not ray.is_initialized():
            handler = signal.getsignal(signal.SIGTERM)
            ray.init(**self._init)
            signal.signal(signal.SIGTERM, handler)  # Ray's would just end the process.
        # The sweep retries trials that die, and counts the attempts.
        job = ray.remote(_execute).options(**{"max_retries": 0, **self._remote})
        hydra = (self._context, self._config, self._task_function, Singleton.get_state())
        tasks = [
            job.remote(number, list(overrides), os.getcwd(), hydra)
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        ray.wait(tasks, num_returns=len(tasks))
        returned: list[JobReturn] = ray.get(tasks)
        return returned


def _execute(number: int, overrides: list[str], folder: str, hydra: Any) -> JobReturn:
    """Runs one job in a process of Ray's."""
    context, config, task_function, singletons = hydra
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(singletons)
    job_config = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job_config):
        job_config.hydra.job.id = f"{job_config.hydra.job.name}_{number}"
        job_config.hydra.job.num = number
    HydraConfig.instance().set_config(job_config)
    return run_job(
        hydra_context=context,
        config=job_config,
        task_function=task_function,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
