"""The private API that the rooms use, each part with its purpose and its reason.

- `tensorflow`: TensorFlow's; `datasets`: of its datasets; `tensorflow1_optimizers`: an
  optimizer of TensorFlow 1 as one of Keras.
- `original_estimator`: makes the original `tf.estimator` importable, which TensorFlow no longer
  ships.
- `keras`: Keras's.
- `mlflow`: what older versions of MLflow do otherwise.
- `pickle`: the standard library's unpickler in Python.

Nothing here imports another room but `errors`. A test of each module fails when its library changes
the API that it uses. `runner.sweeps.study` builds on Optuna's classes itself.
"""
