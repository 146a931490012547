#!/bin/sh
# optimizers.sh --strata BINARY [--env DIR] [options] - AdamW over parameters in memory: strata's kernels against torch's fused
# AdamW and DeepSpeedCPUAdam, same machine, same threads, same minutes.
#
# Uses the Python environment of deepspeed_zero3.sh (--env, else ${XDG_CACHE_HOME:-~/.cache}/strata/peers) and makes it from
# requirements.txt where it is missing; then hands over to optimizers.py, whose --help lists the options.
set -eu

peer=optimizers
. "$(dirname "$0")/environment.sh"
peer_parse "$@"
peer_environment
export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=''
peer_run "$@"
