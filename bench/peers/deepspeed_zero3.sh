#!/bin/sh
# deepspeed_zero3.sh --strata BINARY --nvme DIR [--env DIR] [options] - a step of GPT-2 124M with its optimizer state on NVMe:
# strata against DeepSpeed's ZeRO-3 on its CPU accelerator, same machine, same minutes.
#
# Makes a Python environment of its own (--env, else ${XDG_CACHE_HOME:-~/.cache}/strata/peers) from requirements.txt, checks for
# what DeepSpeed's own just-in-time build needs, and hands over to deepspeed_zero3.py, whose --help lists the options.
set -eu

peer=deepspeed_zero3
. "$(dirname "$0")/environment.sh"
peer_parse "$@"
peer_environment libaio.h:libaio-dev
peer_run "$@"
