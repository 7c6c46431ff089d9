"""Proves a warm start: compares a model with what the source of its weights computes.

- `proving`: `prove`, the door.
- `reference`: the recording of the source; `feeding`: gives a model the recorded inputs.
- `source_modules`: the layers that hold a module's tensors; `local_comparison`: compares each one
  on recorded inputs; `causes`: which tensors make one differ, of its own or of others.
- `findings`: why a layer differs; `precision`: the least precise dtype that is compared, and
  computing without TF32.

It rests on `planning`, for the tensors of the layers and for `Proof`, what a proof says.
"""
