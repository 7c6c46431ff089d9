"""The command line: `python -m runner +experiment=NAME`."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner.cluster.local import LocalCluster, task_command
from runner.config.choices import Mode
from runner.config.cluster import resolve_cluster, resolve_trial
from runner.config.cluster_spec import is_task, launches
from runner.config.composition import (
    RAISED,
    experiment_names,
    is_of_composition,
    problem_of,
    register,
    with_plus_plus,
)
from runner.config.groups import shipped
from runner.config.masked_output import hide, masked, masked_output
from runner.config.masking import Mask
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.config.validation import is_from_run_dir, validate
from runner.errors import ConfigError, InterruptedRunError, RunnerError, UserCodeError
from runner.runs.recorded_config import recorded_config
from runner.sweeps.job import Trial, job_of, run_attempt
from runner.system.imports import without_collections, without_import_notes
from runner.system.lifeline import LIFELINE, end_with_launcher
from runner.system.signals import Interruption, ending_at_once
from runner.tracking import start_delivery


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="config")
def _job(config: DictConfig) -> float | None:
    job = job_of(HydraConfig.get())
    if job is not None:
        with masked_output():  # Of a process that a launcher has started.
            return run_attempt(job, lambda trial: _run(config, trial))
    try:
        return _run(config)
    except RunnerError as error:
        # Another sweeper continues with the next trial after a failure, but not after a signal.
        interrupted = isinstance(error, InterruptedRunError)
        if HydraConfig.get().mode == RunMode.MULTIRUN and not interrupted:
            raise
        # Hydra would print a line of its own before an exception; SystemExit passes through.
        raise SystemExit(_fail(error)) from error


def _run(config: DictConfig, trial: Trial | None = None) -> float | None:
    # As typed: resolved, they would hold the values of `${oc.env:X}`.
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    from_run_dir = is_from_run_dir(config)
    if from_run_dir:
        config = recorded_config(config, overrides)
    sweeps = HydraConfig.get().mode == RunMode.MULTIRUN
    resolved = resolve_trial if sweeps else resolve_cluster
    run_config = resolved(validate(config, experiment_names()), os.environ)
    hide(Mask(run_config.tracking.mask, asdict(run_config)))
    if launches(run_config):
        _launch(run_config)
        return None
    # Of a cluster the chief records, for all tasks.
    alone = not is_task(run_config.cluster, PS, WORKER, EVALUATOR)
    if run_config.mode is Mode.train and alone:
        start_delivery(run_config.tracking)  # Its imports overlap those below.
    _import_runtime()
    from runner.cluster.chief import coordinator_of, run_task
    from runner.lifecycle import run_experiment
    from runner.training.experiment import RunContext
    from runner.training.watch import TrialWatch

    if run_config.mode is Mode.train and not alone:
        run_task(run_config)
        return None
    context = RunContext(
        overrides=overrides,
        from_run_dir=from_run_dir,
        ends_command=not sweeps,
        print_next_commands=not sweeps and LIFELINE not in os.environ,
        watch=trial or TrialWatch(),
        coordinator=coordinator_of(run_config),
    )
    with Interruption(run_config.session.grace_seconds).handled() as interruption:
        objective = run_experiment(run_config, context)
        if sweeps and trial is None:
            interruption.check()  # Another sweeper would continue with the next trial.
    return objective


def _import_runtime() -> None:
    """Imports TensorFlow quietly, once a valid configuration needs it."""
    first = "runner.lifecycle" not in sys.modules  # Not so in the second trial of a sweep.
    with without_import_notes(), without_collections() if first else nullcontext():
        import runner.lifecycle  # noqa: F401

        _look_for_gpus()
    # Its own Saver uses deprecated parts, which it warns about.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _look_for_gpus() -> None:
    """Otherwise the first session does, and reports a missing driver."""
    import tensorflow as tf

    tf.config.list_physical_devices()


def _launch(config: RunConfig) -> None:
    """Starts the tasks of a local cluster by this same command."""
    command = task_command(HydraConfig.get(), shipped("conf"))
    LocalCluster(config.cluster, command, save_seconds=config.session.grace_seconds).run()


def versions() -> str:
    """Returns the installed versions of the packages that decide a run's result."""
    installed = []
    for name, package in (("runner", "runner"), ("TensorFlow", "tensorflow"), ("Keras", "keras")):
        try:
            installed.append(f"{name} {metadata.version(package)}")
        except metadata.PackageNotFoundError:  # A checkout that is merely on the Python path.
            installed.append(f"{name} (not installed)")
    return ", ".join(installed)


def main() -> int:
    """Runs the command line and returns the exit code.

    The code is 0 when all is done, 2 for a mistake in the command or configuration, 3 for a plan
    with problems, 130 or 143 after a signal, and 1 for anything else.
    """
    with masked_output():
        try:
            return _main()
        except Exception:  # noqa: BLE001 - printed as Python would, but for the secrets
            traceback.print_exc()
            return 1


def _main() -> int:
    if "--version" in sys.argv[1:]:
        print(versions())
        return 0
    if sys.argv[1:] and sys.argv[1] in _COMMANDS:
        return _command(_COMMANDS[sys.argv[1]], sys.argv[2:])
    end_with_launcher(os.environ)
    register()
    # Lets Hydra's errors reach us as exceptions; otherwise it prints them and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        sys.argv[1:] = _options_first([with_plus_plus(argument) for argument in sys.argv[1:]])
        with ending_at_once():
            _job()
    except RunnerError as error:
        return _fail(error)
    except RAISED as error:
        if not is_of_composition(error):
            raise  # An error of the run, with its traceback.
        return _fail(ConfigError(problem_of(error)))
    except KeyboardInterrupt:
        return _fail(InterruptedRunError(signal.SIGINT))
    return 0


# The commands besides a run -> the module whose `main` takes their arguments.
_COMMANDS = {
    "init": "runner.config.new_project",
    "map": "runner.mapping.command",
    "prove": "runner.training.plan_proof",
    "verify": "runner.training.first_values",
}


def _command(module: str, arguments: Sequence[str]) -> int:
    try:
        with ending_at_once():
            with without_import_notes():
                command = importlib.import_module(module)
                if "tensorflow" in sys.modules:
                    _look_for_gpus()
            command.main(arguments)
    except RunnerError as error:
        return _fail(error)
    return 0


# Hydra's options that take the next argument as their value.
_VALUED = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"}
_VALUED |= {"--config-dir", "-cd", "--experimental-rerun"}


def _options_first(arguments: Sequence[str]) -> list[str]:
    """Moves the overrides behind the options, because `argparse` accepts them only in one piece."""
    options: list[str] = []
    overrides: list[str] = []
    previous = ""
    for argument in arguments:
        is_value = previous in _VALUED or (previous in ("--info", "-i") and "=" not in argument)
        (options if is_value or argument.startswith("-") else overrides).append(argument)
        previous = "" if is_value else argument
    return options + overrides


def _fail(error: RunnerError) -> int:
    shown: RunnerError = error
    if isinstance(error, InterruptedRunError) and LIFELINE in os.environ:
        # The process that has started this task reports whether there is a run to continue.
        shown = RunnerError(*(replace(problem, remedy="") for problem in error.problems))
    details = f"\n{error.details}" if isinstance(error, UserCodeError) and error.details else ""
    # A message may repeat an override, or a value of the configuration.
    print(masked(f"runner: {shown}{details}"), file=sys.stderr)
    return error.exit_code


def command() -> NoReturn:
    """Runs the command `runner`: like `python -m runner`, with the current directory's modules."""
    sys.path.insert(0, str(Path.cwd()))
    _main_within_grace()


def _main_within_grace() -> NoReturn:
    """Runs `main` and ends the process, after a signal without a cleanup that takes seconds."""
    # If native code aborts the process, the Python frames show in which step.
    faulthandler.enable(all_threads=False)
    try:
        code: object = main()
    except SystemExit as end:
        code = end.code
    if code in (130, 143):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    _main_within_grace()
