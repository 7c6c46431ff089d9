"""Says how to install what a sweep needs and the package itself does not bring."""

from __future__ import annotations

import importlib

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from runner.errors import ConfigError, Problem

# Prefix of a launcher's class -> the extra that brings it.
_LAUNCHERS = {
    "hydra_plugins.hydra_joblib_launcher.": "joblib",
    "hydra_plugins.hydra_submitit_launcher.": "slurm",
}


def require_extra(module: str, setting: str) -> None:
    """Checks that a module can be imported, which the extra of its name brings.

    Args:
      module: `optuna` or `ray`.
      setting: what needs it, such as `hydra/launcher=ray`.

    Raises:
      ConfigError: it cannot.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            Problem(
                f"{setting} needs {module.capitalize()}",
                str(error),
                f'pip install "runner[{module}]", or in a checkout pip install -e ".[{module}]"',
            )
        ) from error


def require_launcher(target: str) -> None:
    """Checks that the launcher's plugin is installed.

    Raises:
      ConfigError: it is not.
    """
    known = Plugins.instance().class_name_to_class
    if target in known:
        return
    extra = next((each for prefix, each in _LAUNCHERS.items() if target.startswith(prefix)), None)
    raise ConfigError(
        Problem(
            f"hydra.launcher._target_ is {target!r}",
            "no installed plugin of Hydra holds it",
            f'pip install "runner[{extra}]"' if extra else "install its package",
            tuple(name for name, each in known.items() if issubclass(each, Launcher)),
        )
    )
