"""`runner map`: prints the rules that bring checkpoints into a model, as YAML, then the plan.

MODEL is the `_target_` of a function or class with its arguments as KEY=VALUE, such as
keras.applications.ResNet50 classes=10; a .keras file; or an experiment. CHECKPOINT is a path of any
format; of an experiment it may be the name of a scaffold, whose checkpoint is read. With a
reference of what the source computes, values decide, and the proof is printed; without one, names
make a proposal. Exit code: 0 when every variable is decided and the outputs are equal, 2 for a
mistake in the command, or 3.
"""

from __future__ import annotations

import argparse
import os

from runner.config.choices import EXPERIMENT
from runner.errors import ConfigError, PlanError
from runner.system.imports import import_tensorflow

_EPILOG = "example: runner map keras.applications.ResNet50 resnet50.pt --reference reference.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner map`."""
    parser.epilog = _EPILOG
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("arguments", metavar="[KEY=VALUE...] CHECKPOINT", nargs="*")
    parser.add_argument(
        "--hint",
        action="append",
        default=[],
        metavar="THEIRS=OURS",
        help="a word in names of tensors and the model's word for it; may be repeated",
    )
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with your own experiments")
    parser.add_argument(
        "--reference",
        metavar="REFERENCE.npz",
        help="what the source computes, which decides: docs/how-to/prove.md",
    )


def run(arguments: argparse.Namespace) -> None:
    """Prints the rules, the plan and the proof.

    Raises:
      ConfigError: when the model cannot be built.
      CheckpointError: when a checkpoint cannot be read.
      PlanError: when variables are not decided; the rules are printed before.
    """
    # An existing file is one, also `epoch=3-step=10.ckpt`.
    settings = [
        argument
        for argument in arguments.arguments
        if "=" in argument.split("/")[0] and not os.path.exists(argument)
    ]
    paths = [argument for argument in arguments.arguments if argument not in settings]
    if not paths:
        cause = "runner map takes a model and checkpoints"
        raise ConfigError.of("no checkpoint is named", cause, _EPILOG)
    import_tensorflow()
    from runner.mapping.named_model import model_named
    from runner.mapping.proposal import propose
    from runner.planning import report

    hints = dict(map(_pair, arguments.hint))
    model, scaffolds = model_named(arguments.model, settings, arguments.config_dir)
    checkpoints = [str(scaffolds.get(path, path)) for path in paths]
    for checkpoint in checkpoints:
        if checkpoint.startswith(EXPERIMENT):
            state, remedy = f"{checkpoint} names an experiment", "name a run of it"
            raise ConfigError.of(state, "runner map trains nothing", remedy)
    proposal = propose(model, checkpoints, hints=hints, reference=arguments.reference)
    print(proposal, end="")
    notes = [*report.summary(proposal.plan)]
    doubts = [*proposal.doubts()]
    if proposal.proof is not None:
        if proposal.plan.problems:
            notes.append("Proof with the nearest tensors for what is not decided:")
        notes += proposal.proof.lines()
    elif doubts:
        notes.append(f"A proposal: {'; '.join(doubt.state for doubt in doubts)}.")
        if arguments.reference is None:
            notes.append("To settle it, record what the source computes: --reference reference.npz")
    print("\n".join(f"# {line}".rstrip() for line in notes))
    if problems := [*proposal.plan.problems, *doubts]:
        raise PlanError(*problems)


def _pair(hint: str) -> tuple[str, str]:
    theirs, _, ours = hint.partition("=")
    if not (theirs and ours):
        cause = "it takes a word of the checkpoint and the model's word for it"
        raise ConfigError.of(f"--hint is {hint!r}", cause, "--hint q=query")
    return theirs, ours
