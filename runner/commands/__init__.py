"""The command line: each command reads its arguments and calls functions of the other rooms.

- `command_line`: `main`, which chooses the command, and turns errors into messages and exit codes.
- `run_experiment`: `runner +experiment=NAME`, a run or a sweep, composed by Hydra.
- `init_project`: `runner init`.
- `map_checkpoint`: `runner map`.
- `prove_run`: `runner prove`; `verify_run`: `runner verify`.
- `inspect_checkpoint`: `runner inspect`.
- `show_lineage`: `runner lineage`; `sync_run`: `runner sync`.

A command has two functions: `add_arguments` describes its arguments, and `run` does what they ask.
`runner inspect` and `runner lineage` never import Hydra, and TensorFlow only for formats that need
it; no command imports it before its arguments are right. `runner.__main__` is the process of a
command; no other room knows this one.
"""
