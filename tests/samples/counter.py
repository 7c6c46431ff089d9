"""A graph whose train op counts, and the loop that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow.compat.v1 as tf

# Of a session of a few steps: optimising its graph would take longer than running it.
UNOPTIMISED = tf.ConfigProto()
UNOPTIMISED.graph_options.rewrite_options.disable_meta_optimizer = True


@dataclass
class Counter:
    """Counts global steps in the default graph; `value` is 10 times the step."""

    step_variable: tf.Variable = field(default_factory=tf.train.get_or_create_global_step)

    def __post_init__(self) -> None:
        self.train_op = tf.assign_add(self.step_variable, 1).op
        with tf.control_dependencies([self.train_op]):
            self.step = tf.identity(self.step_variable.read_value())
        self.value = tf.cast(self.step, tf.float32) * 10
        self.saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)

    def run(
        self, hooks: Sequence[tf.train.SessionRunHook], own: Path | None = None, limit: int = 100
    ) -> int:
        """Runs until a hook stops it, at most `limit` steps, and returns how many steps it took."""
        creator = tf.train.ChiefSessionCreator(
            tf.train.Scaffold(saver=self.saver),
            config=UNOPTIMISED,
            checkpoint_dir=str(own) if own else None,
        )
        count = 0
        with tf.train.MonitoredSession(creator, hooks) as session:
            while not session.should_stop() and count < limit:
                session.run(self.train_op)
                count += 1
        return count
