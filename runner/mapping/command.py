"""`runner map`: prints the rules that bring checkpoints into a model, and their plan."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import yaml
from hydra.utils import get_object

from runner.config.choices import EXPERIMENT
from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_names,
    without_hydra,
)
from runner.config.instantiation import build_target
from runner.config.validation import validate
from runner.errors import CheckpointError, ConfigError, PlanError, nearest
from runner.mapping.proposal import propose
from runner.restoration import report

_DESCRIPTION = """Prints the rules that bring checkpoints into a model, as YAML, then the plan.

MODEL is the `_target_` of a function or class with its arguments as KEY=VALUE, such as
keras.applications.ResNet50 classes=10; a .keras file; or an experiment. CHECKPOINT is a path of any
format; of an experiment it may be the name of a scaffold, whose checkpoint is read. With a
reference of what the source computes, values decide, and the proof is printed; without one, names
make a proposal. Exit code: 0 when every variable is decided and the outputs are equal, 2 for a
mistake in the command, or 3."""
_EPILOG = "example: runner map keras.applications.ResNet50 resnet50.pt --reference reference.npz"


def main(arguments: Sequence[str]) -> None:
    """Runs `runner map` with the arguments after it.

    Raises:
      ConfigError: when the model cannot be built.
      CheckpointError: when a checkpoint cannot be read.
      PlanError: when variables are not decided; the rules are printed before.
    """
    parsed = _parser().parse_args(arguments)
    hints = dict(_pair(hint, "--hint") for hint in parsed.hint)
    # An existing file is one, also `epoch=3-step=10.ckpt`.
    settings = [
        argument
        for argument in parsed.arguments
        if "=" in argument.split("/")[0] and not os.path.exists(argument)
    ]
    paths = [argument for argument in parsed.arguments if argument not in settings]
    if not paths:
        raise ConfigError.of(
            "no checkpoint is named", "runner map takes a model and checkpoints", _EPILOG
        )
    model, scaffolds = _model(parsed.model, settings)
    checkpoints = [str(scaffolds.get(path, path)) for path in paths]
    for checkpoint in checkpoints:
        if checkpoint.startswith(EXPERIMENT):
            state, remedy = f"{checkpoint} names an experiment", "name a run of it"
            raise ConfigError.of(state, "runner map trains nothing", remedy)
    proposal = propose(model, checkpoints, hints=hints, reference=parsed.reference)
    print(proposal, end="")
    print("\n".join(f"# {line}".rstrip() for line in report.summary(proposal.plan)))
    if proposal.proof is not None:
        print("\n".join(f"# {line}".rstrip() for line in proposal.proof.lines()))
    doubts = [*proposal.doubts()]
    if proposal.proof is None and doubts:
        print(f"# A proposal: {'; '.join(doubt.state for doubt in doubts)}.")
        print("# To settle it, record what the source computes: --reference reference.npz")
    if problems := [*proposal.plan.problems, *doubts]:
        raise PlanError(*problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="runner map",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("arguments", metavar="[KEY=VALUE...] CHECKPOINT", nargs="*")
    parser.add_argument(
        "--hint",
        action="append",
        default=[],
        metavar="THEIRS=OURS",
        help="a word in names of tensors and the model's word for it; may be repeated",
    )
    parser.add_argument(
        "--reference",
        metavar="REFERENCE.npz",
        help="what the source computes, which decides: docs/how-to/prove.md",
    )
    return parser


def _pair(text: str, where: str) -> tuple[str, str]:
    theirs, equals, ours = text.partition("=")
    if not (theirs and equals and ours):
        cause = "it takes a word of the checkpoint and the model's word for it"
        raise ConfigError.of(f"{where} is {text!r}", cause, f"{where} q=query")
    return theirs, ours


def _model(name: str, settings: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    """Returns a model and the checkpoints of its scaffolds, by name.

    Raises:
      ConfigError: when it cannot be built.
    """
    if name.endswith(".keras"):
        try:
            return keras.models.load_model(name, compile=False), {}
        except (OSError, ValueError, TypeError) as error:
            raise _not_loaded(name, error) from error
    if "." in name:
        return _of_target(name, settings), {}
    with command_scope():
        if name not in experiment_names():
            raise ConfigError.of(
                f"there is no experiment {name!r}",
                "a model is a dotted name, a .keras file or an experiment",
                "name one of them",
                nearest(name, experiment_names()),
            )
        overrides = [f"+experiment={name}", *settings]
        config = validate(without_hydra(compose_command(overrides)), experiment_names())
    if not config.model:
        cause = "it trains a graph or a function"
        raise ConfigError.of(f"the experiment {name} has no Keras model", cause)
    checkpoints = {key: scaffold.checkpoint for key, scaffold in config.scaffolds.items()}
    return build_target("model", config.model), checkpoints


def _not_loaded(name: str, error: Exception) -> CheckpointError:
    """Returns the error of a `.keras` file, which names a class that Keras does not know."""
    state = f"{name} cannot be loaded"
    unknown = re.search(r"Could not locate class '([^']+)'", str(error))
    if unknown is None:
        lines = str(error).splitlines() or [type(error).__name__]
        return CheckpointError.of(state, lines[0])
    return CheckpointError.of(
        state,
        f"it has a layer of the class {unknown[1]}, which is not one of Keras's",
        f"name the function that builds the model as MODEL, or decorate {unknown[1]} with "
        "@keras.saving.register_keras_serializable and load it in Python for runner.propose",
    )


def _of_target(name: str, settings: Sequence[str]) -> Any:
    """Builds the model of a `_target_`; of `keras.applications` without downloading weights."""
    node: dict[str, Any] = {"_target_": name}
    try:
        default = inspect.signature(get_object(name)).parameters.get("weights")
        if default is not None and isinstance(default.default, str):
            node["weights"] = None
    except (ImportError, ValueError, TypeError, AttributeError):
        pass  # `build_target` reports what is wrong.
    for setting in settings:
        key, value = _pair(setting, "MODEL's argument")
        node[key] = yaml.safe_load(value)
    return build_target("MODEL", node)
