"""The data (`digits`) and `models` of the shipped experiments, for `_target_`.

`resnet` is the model of the tutorial from PyTorch to Keras, with its files.
"""

from runner.system.imports import import_tensorflow

import_tensorflow()  # Without the notes of its libraries, before any other word.
