#!/bin/sh
# ddp.sh --strata BINARY [--env DIR] [options] - losses of strata's ranks against PyTorch DDP and DeepSpeed's ZeRO-3 on CPU processes.
#
# Makes a Python environment of its own (environment.sh) and hands over to ddp.py, whose --help lists the options.
set -eu

peer=ddp
. "$(dirname "$0")/environment.sh"
peer_parse "$@"
peer_environment
peer_run "$@"
