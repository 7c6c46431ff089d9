from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from runner.hooks.metrics import RewindHook


def test_every_session_tells_the_step_it_goes_on_from(tmp_path: Path) -> None:
    told: list[int] = []
    for _ in range(2):
        with tf.Graph().as_default():
            step = tf.compat.v1.train.get_or_create_global_step()
            train_op = tf.compat.v1.assign_add(step, 1)
            with tf.compat.v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                hooks=[RewindHook(told.append)],
                log_step_count_steps=0,
            ) as session:
                for _ in range(3):
                    session.run(train_op)
    assert told == [0, 3]
