#!/usr/bin/env bash
# One process for each GPU, on Slurm. Submit it with: sbatch examples/clusters/slurm.sh
#
# 120 seconds before the time limit Slurm sends SIGTERM to every process. plait.training.fit then ends all of them after
# the same step, with a checkpoint, and the job goes back into the queue. It resumes from that checkpoint.
#SBATCH --job-name=plait
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

# On a file system that all nodes see.
run="${RUN:-$HOME/runs/${SLURM_JOB_NAME:-plait}}"
program="${PROGRAM:-examples/clusters/run.py --steps 100000 --save-every 1000}"

# With it, fit warns if a checkpoint takes longer than there is time.
export PLAIT_GRACE=120

# The processes find each other by the variables of Slurm: connect_processes() needs no arguments.
# shellcheck disable=SC2086  # the program has several words
srun --kill-on-bad-exit=1 python $program --folder "$run" &
child=$!

# SIGTERM also reaches this script when the job is preempted; srun passes it on, and this waits for the checkpoint.
trap 'kill -TERM "$child" 2>/dev/null' TERM
wait "$child"
status=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  status=$?
done

# 143, 128 and the number of SIGTERM, is the status of a run that was ended before its last step.
if [ "$status" -eq 143 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
