"""Times steps of `lstm_cnn` in the runner's loop: `python -m benchmarks.real_model`."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import tensorflow.compat.v1 as tf
from hydra import compose, initialize_config_dir
from rich.console import Console

from benchmarks.harness import Result, options, report, shown
from benchmarks.turns import WARM_UP, Taken, Turns
from runner.config.composition import register
from runner.config.groups import shipped
from runner.config.schema import RunConfig
from runner.config.validation import validate
from runner.console import Screen
from runner.graph.build import build_graph
from runner.lifecycle import run_experiment
from runner.training.context import RunContext

STEPS = 250
NEVER = 10**9
LIMIT = 1.03
# case -> whether metrics are delivered to a database meanwhile, and whether progress is a bar.
CASES = {
    "a line each step": (False, False),
    "a bar": (False, True),
    "a bar, SQLite meanwhile": (True, True),
}


def configuration(folder: Path, tracking: str | None) -> RunConfig:
    """Composes the experiment without its sources, which would be trained first."""
    overrides = [
        "+experiment=lstm_cnn",
        "scaffold@scaffolds.cnn=random",
        "resume=never",
        "scaffold@scaffolds.lstm=random",
        f"run_dir='{folder}/runs'",
        *(["tracking=none"] if tracking is None else [f"tracking.uri='{tracking}'"]),
        "train.log_every=1",
        f"train.evaluate_every={NEVER}",
        f"train.checkpoint_every={NEVER}",
        f"train.steps={WARM_UP + STEPS}",
        "+hooks.turns._target_=benchmarks.turns.Turns",
    ]
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        return validate(compose("config", overrides), ("lstm_cnn",))


@contextmanager
def bare_loop(config: RunConfig) -> Iterator[None]:
    """Makes the loop to take turns with: the train op as a callable in a plain session."""
    built = build_graph(config, "validation", train=True)
    if built.training is None:
        raise ValueError("the graph was built without a training step")
    with built.graph.as_default():
        session = tf.Session()
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(built.training.input_initializer)
        step = session.make_callable(built.training.train_op)
        Turns.other = lambda steps: deque((step() for _ in range(steps)), maxlen=0)
    with closing(session):
        yield


def in_turns(folder: Path, *, tracked: bool, terminal: bool) -> tuple[Taken, Taken]:
    """Returns what the steps took in the bare loop, and in the runner's."""
    config = configuration(folder, f"sqlite:///{folder}/mlflow.db" if tracked else None)
    with bare_loop(config), (folder / "screen").open("w") as screen:
        console = Console(file=screen, force_terminal=terminal, width=100, highlight=False)
        run_experiment(config, RunContext(screen=Screen(console)))
    return Turns.theirs, Turns.ours


def measure(folder: Path, repeats: int) -> list[Result]:
    """Returns the results of all cases."""
    results: list[Result] = []
    for case, (tracked, terminal) in CASES.items():
        pairs = [in_turns(folder, tracked=tracked, terminal=terminal) for _ in range(repeats)]
        for clock, limit in (("wall", LIMIT), ("cpu", None)):
            bare, runner = (
                tuple(float(getattr(steps, clock)) for steps in runs)
                for runs in zip(*pairs, strict=True)
            )
            # Both of a pair took their steps in turns, and met the same load.
            ratio = statistics.median(b / a for a, b in zip(bare, runner, strict=True))
            name = f"{STEPS} steps, {case}: {clock}"
            results += shown(
                [
                    Result(name, "bare callable", "s", bare),
                    Result(name, "runner", "s", runner, ratio, limit),
                ]
            )
    return results


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    arguments = options(__doc__, repeats=5).parse_args()
    tf.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        results = measure(Path(name), arguments.repeats)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
