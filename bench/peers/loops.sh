#!/bin/sh
# loops.sh --strata BINARY --nvme DIR [--env DIR] [options] - a PyTorch loop over GPT-2 124M in fp32 with strata.optim, state in memory
# and on NVMe, beside torch.optim.AdamW and DeepSpeed's ZeRO-2 and ZeRO-3 with their offloads, same machine, same minutes.
#
# Uses the Python environment of deepspeed_zero3.sh (--env, else ${XDG_CACHE_HOME:-~/.cache}/strata/peers) and makes it from
# requirements.txt where it is missing; then hands over to loops.py, whose --help lists the options.
set -eu

peer=loops
. "$(dirname "$0")/environment.sh"
peer_parse "$@"
peer_environment libaio.h:libaio-dev
export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES=''
peer_run "$@"
