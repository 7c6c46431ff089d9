"""The command line: `python -m runner +experiment=NAME`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.composition import COMPOSITION_ERRORS, experiment_names, explain
from runner.config import Mode, register
from runner.errors import InterruptedRunError, RunnerError
from runner.quiet_import import without_import_notes
from runner.tracking import PARENT_RUN, FollowerProcess, is_tracked, mlflow_uri
from runner.validation import validate


def conf_directory() -> Path:
    """The shipped configs: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")
def _job(config: DictConfig) -> float | None:
    try:
        run_config = validate(config, experiment_names())
        follower = None
        if run_config.mode is Mode.train and is_tracked(run_config.tracking):
            # Its imports overlap those below.
            follower = FollowerProcess()
            follower.start(mlflow_uri(run_config.tracking))
        # TensorFlow is imported only now, for a valid configuration.
        with without_import_notes():
            from runner.run import run_experiment

        # Its warnings are of deprecated parts that its own Saver uses.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        return run_experiment(
            run_config,
            HydraConfig.get().overrides.task,
            parent=os.environ.get(PARENT_RUN),
            follower=follower,
        )
    except RunnerError as error:
        # Hydra goes on to the next trial after a failed one, but a signal is for the whole sweep.
        interrupted = isinstance(error, InterruptedRunError)
        if HydraConfig.get().mode == RunMode.MULTIRUN and not interrupted:
            raise
        # Hydra would print a line of its own before an exception; SystemExit passes through.
        raise SystemExit(_fail(error)) from error


def main() -> int:
    """Runs the command line and returns the exit code (see docs: 0, 1, 2, 3, 130, 143)."""
    register()
    # Lets Hydra's errors reach us as exceptions; otherwise it prints them and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        _job()
    except RunnerError as error:
        return _fail(error)
    except COMPOSITION_ERRORS as error:
        return _fail(explain(error))
    return 0


def _fail(error: RunnerError) -> int:
    print(f"runner: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
