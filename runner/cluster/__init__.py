"""Training by several processes on TensorFlow's distributed runtime.

Every process of a cluster is a task with a role, which the configuration names (`cluster.task`):

- `chief`: runs the experiment and leads the others. `Chief` is a `Coordinator`, the seam at which a
  run meets it; `serve` is a parameter server, which only holds variables until it is released.
- `worker`: trains beside the chief.
- `evaluator`: evaluates every checkpoint beside the training.

They have in common:

- `channel`: which tasks answer, and what they announce and send through the parameter servers.
- `sessions`: a task's server, and creators of sessions that wait for the tasks they need.
- `replica`: a task's copy of the graph: which variable is on which server, which batches it reads.
- `synchronous`: updates that combine one gradient per worker.

`local` starts the tasks of a cluster on this machine. A local cluster may run a trial of a sweep;
its chief reports to the sweep through `trial_link`.

Doors for the command line: `chief.coordinator_of`, `chief.run_task`, `local.LocalCluster`,
`local.task_command` and `trial_link.linked_trial`.
`runner.config.cluster` reads which tasks there are, and where. The chief trains by
`runner.training`, which does not know this room; a worker has a loop of its own.
"""
