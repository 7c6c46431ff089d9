"""Carries plans out: reads values in bounded batches, converts, checks and assigns them.

- `engine`: `restore_values`, for all; `reading`: reads, converts and checks values.
- `restorer`: `Restorer`, the door for restoring in sessions; `session_assigner`: their assigner;
  `initialization`: the initializers that must run before.
- `eager`: `plan`, `warm_start` and the callback `WarmStart`, the doors for programs without a run;
  `eager_plan`: `WarmStartPlan`, a plan as programs have it.
- `inversion`: trained values as tensors of the checkpoint that they came from.

What comes from where is decided in `planning`; `session` and `graph` rest on this room.
"""
