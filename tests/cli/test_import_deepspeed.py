#!/usr/bin/env python3
"""tools/import_deepspeed.py on a committed run of DeepSpeed that trained adapters: what it writes is what is committed, and has the
values of DeepSpeed's own files.  Skipped (77) without torch.

    test_import_deepspeed.py SOURCE_DIR
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

try:
    import torch
    import numpy
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = sys.argv[1]
LORA = os.path.join(ROOT, "tests", "golden", "deepspeed_lora")
TOOL = os.path.join(ROOT, "tools", "import_deepspeed.py")
LAYER = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
NAMES = {  # in the run: here
    "base_model.model.lm_head.modules_to_save.default.weight": "lm_head.weight",
    LAYER + "A.default.weight": LAYER + "A.weight",
    LAYER + "B.default.weight": LAYER + "B.weight",
}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tensors(path):
    data = read(path)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__")
    return {name: (t["shape"], data[end + t["data_offsets"][0]:end + t["data_offsets"][1]]) for name, t in header.items()}


def flipped(data, path):
    """A bit of the values, which torch reads as they are."""
    with zipfile.ZipFile(path) as file:
        member = next(m for m in file.infolist() if m.filename.endswith("data/0"))
        with file.open(member) as values:
            at = data.index(values.read(64))
    return data[:at + 1] + bytes([data[at + 1] ^ 1]) + data[at + 2:]


def refuses_damage(work):
    for name, damage in ((f"zero/{LAYER}A.default.weight/exp_avg.pt", flipped), ("zero/optimizer_state.pt", lambda data, path: data[:-40]),
                         (f"zero/{LAYER}B.default.weight/step.pt", lambda data, path: b"")):
        universal = shutil.copytree(os.path.join(LORA, "universal"), os.path.join(work, "damaged"))
        parts = os.path.join(work, "refused")
        path = os.path.join(universal, name)
        data = damage(read(path), path)
        with open(path, "wb") as file:
            file.write(data)
        run = subprocess.run([sys.executable, TOOL, universal, parts, "--adapter", os.path.join(LORA, "adapter")], capture_output=True, text=True)
        assert run.returncode == 1 and f"{name}: is damaged" in run.stderr and run.stderr.count("\n") == 1, run.stderr
        assert not os.path.exists(os.path.join(parts, "state.json"))
        shutil.rmtree(universal)


def reads_files_without_checksums(work):
    if not hasattr(torch.serialization, "set_crc32_options"):
        return
    universal = shutil.copytree(os.path.join(LORA, "universal"), os.path.join(work, "without"))
    path = os.path.join(universal, "zero", LAYER + "A.default.weight", "exp_avg.pt")
    value = torch.load(path, weights_only=True)
    torch.serialization.set_crc32_options(False)
    torch.save(value, path)
    subprocess.check_call([sys.executable, TOOL, universal, os.path.join(work, "again"), "--adapter", os.path.join(LORA, "adapter")])


def main():
    with tempfile.TemporaryDirectory() as work:
        refuses_damage(work)
        reads_files_without_checksums(work)
    with tempfile.TemporaryDirectory() as work:
        parts = os.path.join(work, "parts")
        universal = os.path.join(LORA, "universal")
        refused = subprocess.run([sys.executable, TOOL, universal, parts], capture_output=True, text=True)
        assert refused.returncode == 1 and "--adapter DIR" in refused.stderr, refused.stderr
        subprocess.check_call([sys.executable, TOOL, universal, parts, "--adapter", os.path.join(LORA, "adapter")])
        for name in ("adapter_config.json", "state.json", "fp32/model.safetensors", "exp_avg/model.safetensors", "exp_avg_sq/model.safetensors"):
            assert read(os.path.join(parts, name)) == read(os.path.join(LORA, "parts", name)), name
        for state in ("fp32", "exp_avg", "exp_avg_sq"):
            found = tensors(os.path.join(parts, state, "model.safetensors"))
            assert sorted(found) == sorted(NAMES.values()), sorted(found)
            for theirs, ours in NAMES.items():
                value = torch.load(os.path.join(universal, "zero", theirs, state + ".pt"), weights_only=True)["param"]
                shape, data = found[ours]
                assert list(value.shape) == shape and value.detach().numpy().astype(numpy.float32).tobytes() == data, (state, theirs)


main()
