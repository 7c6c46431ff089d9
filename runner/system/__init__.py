"""Services of the operating system, and their use by processes.

- `signals`: SIGINT and SIGTERM as an orderly end of a run, within a bounded time.
- `lifeline`: ends a process when its parent has gone.
- `output`: standard output that may lose its reader.
- `locks`: locks, and the heartbeat of their owner for other hosts.
- `status`: the statuses of runs, trials and attempts.
- `run_format`: the number of the format of their files.
- `atomic_files`: atomic writes, and paths that survive a move.
- `array_file`: arrays in a file, in place of memory.
- `imports`: fast and silent imports of large libraries, and the path of imports of a child process.
- `user_code`: errors of an experiment's own code, with only its own frames.

Nothing here reads a configuration, trains or evaluates. `lifeline` alone distinguishes the
processes of a cluster from processes of a sweep.
"""
