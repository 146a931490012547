#!/bin/sh
# aio_handle.sh --strata BINARY --nvme DIR [--env DIR] [options] - reads and writes of one file: strata bench io, fio, and DeepSpeed's
# aio_handle with its defaults and tuned, same drive, same sizes, same minutes.
#
# Uses the Python environment of deepspeed_zero3.sh (--env, else ${XDG_CACHE_HOME:-~/.cache}/strata/peers) and makes it from
# requirements.txt where it is missing; then hands over to aio_handle.py, whose --help lists the options.
set -eu

peer=aio_handle
. "$(dirname "$0")/environment.sh"
peer_parse "$@"
peer_environment libaio.h:libaio-dev
export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=''
peer_run "$@"
