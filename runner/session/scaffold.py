"""A Scaffold that says what it is called and whether its checkpoint may be absent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Scaffold(tf.compat.v1.train.Scaffold):
    """`tf.compat.v1.train.Scaffold` with two more attributes.

    Attributes:
      name: names the scaffold in messages; empty by default.
      optional: True allows its checkpoint to be absent; its variables then keep their initial
        values. False by default.
    """

    def __init__(self, *args: Any, name: str = "", optional: bool = False, **kwargs: Any) -> None:
        """Takes the arguments of `tf.compat.v1.train.Scaffold` besides."""
        super().__init__(*args, **kwargs)
        self.name = name
        self.optional = optional
