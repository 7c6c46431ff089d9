"""The `checkpoint` file, in which TensorFlow lists a directory's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

STATE_FILE = "checkpoint"


@dataclass(frozen=True)
class CheckpointState:
    """What a directory's `checkpoint` file says.

    Attributes:
      newest: the prefix of the newest checkpoint.
      kept: the prefixes of all checkpoints that were kept, oldest first.
    """

    newest: str
    kept: tuple[str, ...]


def read_state(directory: str) -> CheckpointState | None:
    """Returns what the `checkpoint` file says; None when there is none or it is damaged.

    TensorFlow makes the relative paths in it relative to the working directory.
    """
    # Importing TensorFlow takes seconds, which directories without such a file do not need.
    import tensorflow as tf

    state = tf.train.get_checkpoint_state(directory)
    if state is None:
        return None
    return CheckpointState(
        str(state.model_checkpoint_path), tuple(map(str, state.all_model_checkpoint_paths))
    )
