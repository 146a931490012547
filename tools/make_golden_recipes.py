#!/usr/bin/env python3
"""make_golden_recipes.py - runs LLaMA-Factory on the files of tests/golden/recipes/*.yaml and keeps the losses of their 20 steps.

    python tools/make_golden_recipes.py                 all of them
    python tools/make_golden_recipes.py full_sft ...    these

Needs LLaMA-Factory (0.9.6), PyTorch and transformers; runs on the CPU.  Every step of these files has all rows, so that the order in
which Trainer shuffles them is all the same.  Made anew only when the model (random weights, seeded) is missing."""
import importlib
import importlib.machinery
import json
import os
import pathlib
import shutil
import sys
import tempfile
import types

os.environ.update(CUDA_VISIBLE_DEVICES="", DISABLE_VERSION_CHECK="1", ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="2")
HERE = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = HERE / "tests/golden/recipes"
TOKENIZER = HERE / "tests/golden/tokenizers/qwen2.json"
STEPS = 20


class Absent(types.ModuleType):
    """A package that LLaMA-Factory imports and this run does not use."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            module = Absent(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            module.__path__ = []
            sys.modules[name] = module


def make_model(name, hidden, layers):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=424, hidden_size=hidden, intermediate_size=hidden * 2, num_hidden_layers=layers, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=True,
                         bos_token_id=None, eos_token_id=422, pad_token_id=420)
    Qwen2ForCausalLM(config).save_pretrained(GOLDEN / name)
    (GOLDEN / name / "generation_config.json").unlink(missing_ok=True)


def make_adapter(name, base):
    """B is not zero, as at the start of a run, so that the first step shows whether it was read."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(1)
    model = get_peft_model(Qwen2ForCausalLM.from_pretrained(GOLDEN / base), LoraConfig(r=4, lora_alpha=8, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
    for parameter, weight in model.named_parameters():
        if "lora_B" in parameter:
            torch.nn.init.normal_(weight, std=0.05)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(GOLDEN / name)
    (GOLDEN / name / "README.md").unlink(missing_ok=True)


def put_tokenizer(directory):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(directory)


def losses_of(name, work):
    from omegaconf import OmegaConf
    from llamafactory.train.tuner import run_exp

    args = OmegaConf.to_container(OmegaConf.load(GOLDEN / f"{name}.yaml"))
    shutil.copytree(GOLDEN / args["model_name_or_path"], work / "model", dirs_exist_ok=True)
    put_tokenizer(work / "model")
    args.update(model_name_or_path=str(work / "model"), dataset_dir=str(GOLDEN / "data"), output_dir=str(work / name))
    if "adapter_name_or_path" in args:
        args["adapter_name_or_path"] = str(GOLDEN / args["adapter_name_or_path"])
    run_exp(args)
    history = json.loads((work / name / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert len(losses) == STEPS, (name, len(losses))
    return losses


def main():
    stand_in(["torchaudio", "av", "torchvision", "torchvision.transforms", "torchdata", "gradio", "matplotlib", "matplotlib.pyplot",
              "matplotlib.figure", "modelscope", "rouge_chinese", "nltk", "jieba", "trackio", "swanlab"])
    # bitsandbytes dequantises on the CPU with the scales of neighbouring blocks where rows are not whole blocks of 64: wide's are.
    for name, hidden, layers, adapter in (("tiny", 16, 2, "adapter"), ("wide", 64, 1, "wide_adapter")):
        if not (GOLDEN / name).exists():
            make_model(name, hidden, layers)
        if not (GOLDEN / adapter).exists():
            make_adapter(adapter, name)
    path = GOLDEN / "golden.json"
    golden = json.loads(path.read_text()) if path.exists() else {}
    for name in sys.argv[1:] or sorted(p.stem for p in GOLDEN.glob("*.yaml")):
        with tempfile.TemporaryDirectory() as work:
            golden[name] = losses_of(name, pathlib.Path(work))
    path.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")


main()
