"""A step on two devices and on one, with the same batch: `python -m benchmarks.devices`.

The devices are GPUs, or logical CPUs where there are not two.

Both sessions have the same numbers of threads. The processor time is the cost of the division, and
says the same on a busy machine; the time of the clock is what two devices gain beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tensorflow.compat.v1 as tf
from hydra import compose, initialize_config_dir

from benchmarks.harness import Result, options, report, shown
from benchmarks.turns import Taken, now
from runner.config.composition import register
from runner.config.groups import shipped
from runner.config.schema import DevicesConfig
from runner.config.validation import validate
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.graph.devices import devices_of
from runner.graph.step_sums import StepSums

# experiment -> steps in a block, and what makes a batch of it worth dividing.
CASES = {"digits_cnn": (10, ["data.batch_size=512"]), "lstm_cnn": (10, ["data.batch_size=512"])}
LIMIT = 1.15
BLOCKS = 7
CLOCKS = {"cpu": "processor time", "wall": "clock"}


def names(count: int) -> list[str]:
    """Returns the names of so many devices, of the kind that this machine has two of."""
    kind = "gpu" if len(tf.config.list_physical_devices("GPU")) > 1 else "cpu"
    return [f"{kind}:{number}" for number in range(count)]


def build(experiment: str, count: int, overrides: list[str], folder: Path) -> BuiltGraph:
    """Returns the graph of an experiment that starts from its initializers."""
    if experiment == "lstm_cnn":
        scaffolds = ("scaffold@scaffolds.cnn=random", "scaffold@scaffolds.lstm=random")
        overrides = [*overrides, *scaffolds]
    fixed = [f"+experiment={experiment}", "tracking=none", f"run_dir='{folder}'"]
    register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        config = compose("config", [*fixed, f"devices=[{','.join(names(count))}]", *overrides])
    return build_graph(validate(config, (experiment,)), "validation", train=True)


def stepper(built: BuiltGraph) -> Callable[[int], Taken]:
    """Returns what takes so many steps in a session, and returns how long one took."""
    training = built.training
    assert training is not None
    with built.graph.as_default():
        session = tf.Session(config=threads())
        session.run(tf.global_variables_initializer())
        session.run([tf.local_variables_initializer(), tf.tables_initializer()])
        session.run(training.input_initializer)
    return timed(session, training.train_op)


def timed(session: tf.Session, operation: tf.Operation) -> Callable[[int], Taken]:
    """Returns what runs an operation so often, and returns how long one run took."""
    run = session.make_callable(operation)
    for _ in range(5):
        run()

    def take(count: int) -> Taken:
        begun = now()
        for _ in range(count):
            run()
        taken = now() - begun
        return Taken(taken.wall / count, taken.cpu / count)

    return take


def threads() -> tf.ConfigProto:
    """Returns the same two threads for every session; each operation has one."""
    return tf.ConfigProto(
        device_count={"CPU": 2},
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=2,
        use_per_session_threads=True,
        allow_soft_placement=True,
    )


def reduction(built: BuiltGraph) -> Callable[[int], Taken]:
    """Returns what sums as many values as there are weights over two devices, by collectives."""
    with tf.Graph().as_default():
        sums = []
        for device in devices_of(DevicesConfig(count=names(2))).names:
            with tf.device(device):
                step = StepSums(2)
                shapes = [spec.tensor.shape for spec in built.specs if spec.trainable]
                gradients = [tf.random.stateless_uniform(shape, [1, 2]) for shape in shapes]
                sums += step.of_gradients(gradients, gradients)
        session = tf.Session(config=threads())
        return timed(session, tf.group(*sums))


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    arguments = options(__doc__, repeats=BLOCKS).parse_args()
    tf.get_logger().setLevel("ERROR")
    results: list[Result] = []
    for experiment, (steps, overrides) in CASES.items():
        with tempfile.TemporaryDirectory() as name:
            graphs = [build(experiment, count, overrides, Path(name)) for count in (1, 2)]
            ways = [*map(stepper, graphs), reduction(graphs[0])]
            blocks = [[way(steps) for way in ways] for _ in range(arguments.repeats)]
        for clock, limit in (("cpu", LIMIT), ("wall", None)):
            taken = [[getattr(way, clock) * 1e3 for way in block] for block in blocks]
            case = f"a step of {experiment}, {CLOCKS[clock]}"
            for index, (way, most) in enumerate(
                (("one device", None), ("two devices", limit), ("sums alone", None))
            ):
                # The blocks of a repeat took their steps in turns, and met the same load.
                ratio = statistics.median(block[index] / block[0] for block in taken)
                values = tuple(block[index] for block in taken)
                compared = ratio if index else None
                results += shown([Result(case, way, "ms", values, compared, most)])
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
