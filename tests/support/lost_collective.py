"""What TensorFlow's collectives do in a process that has lost another: none works ever again."""

import subprocess
import sys
from typing import Any

import tensorflow.compat.v1 as tf

index, *ports = map(int, sys.argv[1:])
hosts = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
config = tf.ConfigProto(device_filters=[f"/job:worker/task:{index}"])
config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
server = tf.train.Server(hosts, job_name="worker", task_index=index, config=config)
other = None if index else subprocess.Popen([sys.executable, __file__, "1", *sys.argv[2:]])
for group in (1, 2):  # A new graph, session and group for each attempt.
    key: dict[str, Any] = {"group_key": group, "group_size": 2, "ordering_token": []}
    with tf.Graph().as_default(), tf.Session(server.target, config=config) as session:
        key |= {"merge_op": "Add", "final_op": "Id"}
        # Where the other is lost before it asks for this one's part, only a limit ends the wait.
        first, second = (
            tf.raw_ops.CollectiveReduceV2(
                input=[1.0], instance_key=10 * group + index, timeout_seconds=limit, **key
            )
            for index, limit in enumerate((0, 10))
        )
        try:
            assert session.run(first) == 2.0
            if other is not None and group == 1:
                other.kill()
            while True:
                session.run(second)
        except tf.errors.OpError as error:
            print(group, type(error).__name__, "Restart your program" in error.message, flush=True)
    if other is not None and group == 1:
        other.wait()
        other = subprocess.Popen([sys.executable, __file__, "1", *sys.argv[2:]])
if other is not None:
    other.kill()
    other.wait()
