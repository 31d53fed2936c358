#!/usr/bin/env bash
# The same program on every host of a Cloud TPU pod slice: examples/clusters/tpu_pod.sh NAME ZONE /mnt/bucket/run
#
# The folder is one that all hosts see: a network file system, or a bucket mounted by something that renames folders in one
# step (no mount was tested).
# connect_processes() finds the other hosts itself. A preempted host gets SIGTERM and 30 seconds; plait.training.fit then
# ends all processes after the same step, with a checkpoint, if one can be written in that time. This waits for the slice
# to come back, and starts the program again, which resumes.
set -u

if [ "$#" -ne 3 ]; then
  echo "usage: $0 NAME ZONE FOLDER" >&2
  exit 2
fi
name="$1" zone="$2" folder="$3"
program="${PROGRAM:-examples/clusters/run.py --steps 100000 --save-every 1000}"

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --command "$1"
}

until on_all_hosts "cd plait && PLAIT_GRACE=30 exec python3 $program --folder '$folder'"; do
  until [ "$(gcloud compute tpus tpu-vm describe "$name" --zone "$zone" --format='value(state)')" = READY ]; do
    sleep "${PAUSE:-30}"
  done
done
