"""Trains one model in several processes, on TensorFlow's distributed runtime.

Every process of a cluster is a task with a role, which `TF_CONFIG` names:

- `chief`: runs the experiment and leads the others. `Chief` is a `Coordinator`, the seam between a
  run and its cluster. `serve` is a parameter server, which holds variables until it is released.
- `worker`: trains beside the chief.
- `evaluator`: evaluates every checkpoint beside the training.

They have in common:

- `channel`: finds out which tasks answer; announcements and metrics that pass through the
  parameter servers.
- `sessions`: a task's server, and creators of sessions that wait for the tasks they need.
- `task_replica`: a task's graph, the servers of its variables, and the batches it reads.

In mode `collective` there are no parameter servers: every task holds the model.

- `collective`: how the tasks follow the chief, which tells them before every step what comes, and
  take over its values. `runner.graph.step_sums` sums over the tasks of a step.
- `peers`: sessions that begin and end together, and the worker of this mode.

`local` starts the tasks of a cluster on this machine.

Entry points for the start of a run: `chief.coordinator_of`, `chief.run_task`, `local.LocalCluster`
and `local.task_command`.
`runner.config.cluster` reads the tasks and their addresses. The chief trains by `runner.training`,
which does not know this room; a worker has a separate loop.
"""
