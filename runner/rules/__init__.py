"""The rules of a warm start: patterns over variables -> expressions over tensors -> conversions.

- `patterns`: patterns over names, with parts and arithmetic, and renames.
- `translator`: a scaffold's rules, of all spellings, as one expression for each variable.
- `expressions`: their syntax. `steps`: their steps and functions by name, and `named_conversions`
  the steps of whole layers, `torch_layouts` of PyTorch's; `target`: the variable that steps are
  built for.
- `conversions`, `resampling`, `vocabularies`: compute the steps; `combinations`: the functions.
- `source_tensors`: the way from tensors to the variable's value, and back.

Doors: `Translator`, from names to expressions, and `SourceTensor`, from tensors to a value. It is
all strings, shapes and NumPy: nothing here knows a model, a plan or TensorFlow.
"""
