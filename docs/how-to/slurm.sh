#!/bin/bash
# One task on each node: the first PS nodes serve, the next is the chief, the rest are workers; with
# EVALUATOR=1 the last one evaluates. PS=0 is for cluster.mode=collective.
#   sbatch --nodes=4 docs/how-to/slurm.sh +experiment=lstm_cnn run_dir=/shared/runs/lstm_cnn
# The run directory must be on a file system that survives the job. After a time limit or a lost
# node the same command continues the run.
#SBATCH --ntasks-per-node=1
# Comes to all tasks: the chief saves, and the others serve it until it has.
#SBATCH --signal=TERM@120
set -euo pipefail

export PS=${PS:-1} EVALUATOR=${EVALUATOR:-0} PORT=${PORT:-2222} RESTARTS=${RESTARTS:-3}
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ' ')
export HOSTS

# Prints TF_CONFIG of the task whose number is given.
tf_config() {
    local -a hosts ps=() worker=() evaluator=()
    local chief='' index=0 host type=worker
    read -ra hosts <<< "$HOSTS"
    local last=$((${#hosts[@]} - EVALUATOR))
    if (( last < PS + 1 )); then
        echo "slurm.sh: ${#hosts[@]} nodes are too few for $PS parameter servers," \
            "$EVALUATOR evaluators and a chief" >&2
        return 2
    fi
    for host in "${hosts[@]}"; do
        if (( index < PS )); then ps+=("\"$host:$PORT\"")
        elif (( index == PS )); then chief="\"$host:$PORT\""
        elif (( index < last )); then worker+=("\"$host:$PORT\"")
        else evaluator+=("\"$host:$PORT\"")
        fi
        index=$((index + 1))
    done
    index=$(($1 - PS - 1))
    if (( $1 < PS )); then type=ps index=$1
    elif (( $1 == PS )); then type=chief index=0
    elif (( $1 >= last )); then type=evaluator index=$(($1 - last))
    fi
    local IFS=,
    printf '{"cluster": {"ps": [%s], "chief": [%s], "worker": [%s], "evaluator": [%s]}, ' \
        "${ps[*]}" "$chief" "${worker[*]-}" "${evaluator[*]-}"
    printf '"task": {"type": "%s", "index": %d}}\n' "$type" "$index"
}
export -f tf_config

# What one task cannot do, none can: when one has ended, the others have a minute to end too. At once
# would be too soon, because a worker may be first where the chief still saves.
# shellcheck disable=SC2016 # the shell of each task is to expand it
srun --kill-on-bad-exit=0 --wait=60 --label bash -c '
    set -e
    TF_CONFIG=$(tf_config "$SLURM_PROCID")
    export TF_CONFIG
    # Signals come to the runner too, which saves and ends; this shell waits for it.
    trap : TERM INT
    for (( start = 0; ; start++ )); do
        code=0
        python -m runner "$@" || code=$?
        if (( code != 137 || start == RESTARTS )); then exit "$code"; fi
    done
' bash "$@"
