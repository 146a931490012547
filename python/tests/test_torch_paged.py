"""Modules whose layers page, beside resident ones and PyTorch.  Skipped without torch and transformers."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    print("torch or transformers is not installed")
    sys.exit(77)

import safetensors.torch
import torch
from torch.nn import functional

import strata
from strata import deepspeed
from strata.torch import Engine, trace
from strata.torch.dlpack import tensor_at
from strata.torch.mapped import release, source_of

if __name__ == "__main__":  # one of several ranks, or a script
    deepspeed.install()
import transformers

torch.set_num_threads(1)

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
}
SINGLE = {**CONFIG, "train_batch_size": 1, "gradient_accumulation_steps": 1}
BF16 = {"bf16": {"enabled": True}}
DECODER = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}


def llama(**changes: Any) -> Any:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**DECODER, **changes}))


def qwen2() -> Any:
    torch.manual_seed(2)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER, tie_word_embeddings=True))


def gpt2(dropout: float = 0.0) -> Any:
    torch.manual_seed(3)
    off = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, **off))


def t5(cache: bool = False) -> Any:
    """With a cache attention has keys of another layout, and other bits: paged layers leave it out in training."""
    torch.manual_seed(4)
    sizes = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=cache))


def bert() -> Any:
    torch.manual_seed(5)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **off))


MODELS: tuple[Callable[[], Any], ...] = (llama, qwen2, gpt2, t5, bert)


def batch_of(number: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 97, (2, 10), generator=made)
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0  # padded on the right
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def qwen2_vl() -> Any:
    torch.manual_seed(6)
    text = {**DECODER, "bos_token_id": 1, "eos_token_id": 2}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    tower = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2}
    ids = {"image_token_id": 90, "vision_start_token_id": 91, "vision_end_token_id": 92, "video_token_id": 93}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=tower, **ids)
    return transformers.Qwen2VLForConditionalGeneration(config)


def images_of(number: int) -> dict[str, torch.Tensor]:
    """An image of 4 x 4 patches, which are four tokens, in each text."""
    made = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 89, (2, 12), generator=made)
    tokens[:, 2:8] = torch.tensor([91, 90, 90, 90, 90, 92])
    told = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.masked_fill(tokens >= 90, -100)}
    images = {"pixel_values": torch.randn(32, 96, generator=made), "image_grid_thw": torch.tensor([[1, 4, 4]] * 2)}
    return {**told, **images, "mm_token_type_ids": (tokens == 90).int()}


Batches = Callable[[int], dict[str, torch.Tensor]]


def tier(device: str, directory: str) -> dict[str, Any]:
    offload = {"device": device, **({"nvme_path": directory} if device == "nvme" else {})}
    return {"zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload}}


def train(engine: Engine, steps: range, casts: bool = False, batches: Batches = batch_of) -> list[tuple[float, float]]:
    told = []
    for step in steps:
        for micro in range(engine.accumulation):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts):
                loss = engine(**batches(engine.accumulation * step + micro)).loss
            engine.backward(loss)
            made = engine.step()
        assert made is not None
        told.append((made.loss, made.grad_norm))
    return told


def theirs(model: Any, steps: int, batches: Batches = batch_of) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        parts = [model(**batches(2 * step + micro)).loss / 2 for micro in range(2)]
        for part in parts:
            part.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return losses


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in engine.module.state_dict().items()}


def run(
    model: Any, how: str, steps: int = 4, casts: bool = False, batches: Batches = batch_of, layers: Any = None, **config: Any
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    """How: resident, listed (layers that stay where they are), cpu or nvme."""
    with tempfile.TemporaryDirectory() as scratch:
        placed = tier(how, scratch) if how in ("cpu", "nvme") else {}
        named = [o.name for o in trace(model, batches(0)).layers] if how == "listed" else layers
        example = {"example": batches(0)} if how == "nvme" else {}
        engine = Engine(model, {**CONFIG, **placed, **config}, layers=named, **example)
        torch.manual_seed(7)
        told = train(engine, range(steps), casts, batches)
        made = weights(engine)
        engine.destroy()
    return told, made


class Bits(unittest.TestCase):
    def same(self, one: Any, other: Any, what: str) -> None:
        self.assertEqual(one[0], other[0], what)
        self.assertEqual(one[1].keys(), other[1].keys())
        for name, value in one[1].items():
            self.assertTrue(torch.equal(value, other[1][name]), f"{what}: {name}")

    def test_every_placement_has_the_same_bits_and_pytorchs_losses(self) -> None:
        for model in MODELS:
            resident = run(model(), "resident", 10)
            for how in ("listed", "cpu", "nvme"):
                self.same(run(model(), how, 10), resident, f"{model.__name__} {how}")
            for (loss, _), wanted in zip(resident[0], theirs(model(), 10), strict=True):
                self.assertAlmostEqual(loss / wanted, 1, delta=1e-5, msg=model.__name__)

    def test_images(self) -> None:
        """The tower stays, or is one more layer, or more of them: a norm adds up layer by layer, and may round otherwise."""
        resident = run(qwen2_vl(), "resident", 10, batches=images_of)
        for ours, loss in zip(resident[0], theirs(qwen2_vl(), 10, images_of)):
            self.assertAlmostEqual(ours[0], loss, delta=1e-5 * loss)
        text = "model.language_model.layers"
        for how, layers in (("cpu", None), ("nvme", ["model.visual", text]), ("nvme", ["model.visual.blocks", text])):
            told, made = run(qwen2_vl(), how, 10, batches=images_of, layers=layers)
            for (_, norm), (_, other) in zip(told, resident[0], strict=True):
                self.assertAlmostEqual(norm / other, 1, delta=1e-14)
            losses = [(loss, norm) for (loss, _), (_, norm) in zip(told, resident[0])]
            self.same((losses, made), resident, f"{how} {layers}")

    def test_dropout_and_16_bits_and_autocast(self) -> None:
        self.same(run(gpt2(0.1), "nvme"), run(gpt2(0.1), "resident"), "dropout")
        self.same(run(llama(), "nvme", **BF16), run(llama(), "resident", **BF16), "bf16")
        fp16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}
        self.same(run(llama(), "cpu", **fp16), run(llama(), "resident", **fp16), "fp16")
        self.same(run(llama(), "cpu", casts=True), run(llama(), "resident", casts=True), "autocast")

    def test_frozen_layers_and_a_frozen_embedding(self) -> None:
        def frozen(*names: str) -> Any:
            model = llama()
            for name, p in model.named_parameters():
                p.requires_grad_(not name.startswith(names))
            return model

        for names in (
            ("model.embed_tokens",),
            ("model.embed_tokens", "model.layers.0"),
            ("model.layers.1",),
            ("model.layers.2", "lm_head"),
            ("model.layers.0.mlp", "model.layers.1", "model.embed_tokens", "model.norm"),
        ):
            self.same(run(frozen(*names), "cpu"), run(frozen(*names), "resident"), str(names))

    def test_hf_checkpointing_is_turned_off(self) -> None:
        model = llama()
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # of transformers 5 and 4
        model.train()
        with self.assertLogs("strata", "WARNING") as told:
            paged = run(model, "cpu")
        self.assertEqual(len([line for line in told.output if "gradient checkpointing is turned off" in line]), 1)
        self.same(paged, run(llama(), "resident"), "checkpointing")

    def test_tensors_by_dlpack(self) -> None:
        """As on a GPU, whose memory has no other way."""

        def over(address: int, shape: torch.Size, dtype: torch.dtype, owner: object, _: Any = None) -> torch.Tensor:
            return tensor_at(address, shape, dtype, owner, torch.device("cpu"))

        buffer = (ctypes.c_ubyte * 8)()
        known = weakref.ref(owner := Net())
        tensor = over(ctypes.addressof(buffer), torch.Size([2, 2]), torch.bfloat16, owner)
        tensor.fill_(1)
        part, owner, tensor = tensor[1], None, None
        self.assertEqual(bytes(buffer), b"\x80\x3f" * 4)
        self.assertIsNotNone(known())
        del part
        self.assertIsNone(known())
        with ExitStack() as patched:
            for module in ("engine", "paged", "placed"):
                patched.enter_context(mock.patch(f"strata.torch.{module}.over", over))
            made = run(llama(), "nvme", **BF16)
        self.same(made, run(llama(), "resident", **BF16), "dlpack")

    def test_two_and_four_ranks_have_the_bits_of_one(self) -> None:
        """The ranks' model comes from a file, within zero.Init."""
        with tempfile.TemporaryDirectory() as scratch:
            first = wide()
            first.save_pretrained(f"{scratch}/model")
            one = run_rank(first, 0, 1, scratch)
            for ranks in (2, 4):
                run_script("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__, scratch)
                for rank in range(ranks):
                    other = torch.load(Path(scratch) / f"{rank}.pt", weights_only=False)
                    self.same(([], other), ([], one), f"rank {rank} of {ranks}")


class Weights(unittest.TestCase):
    def setUp(self) -> None:
        self.module = llama()
        self.engine = Engine(self.module, {**SINGLE, **tier("cpu", ""), **BF16})
        train(self.engine, range(2))

    def test_reading_outside_raises_and_gathered_reads_and_writes(self) -> None:
        p = self.module.model.layers[1].mlp.up_proj.weight
        kept = weights(self.engine)["model.layers.1.mlp.up_proj.weight"]
        self.assertEqual((p.shape, p.dtype), ((48, 32), torch.bfloat16))
        for read in (lambda: p + 1, lambda: p.tolist(), lambda: p.detach().clone(), lambda: p.data.zero_()):
            with self.assertRaisesRegex(RuntimeError, "^model.layers.1.mlp.up_proj.weight is paged: engine.gathered"):
                read()
        with self.engine.gathered():
            self.assertTrue(torch.equal(p, kept))
            with self.engine.gathered(p), torch.no_grad():
                p.mul_(2)
        with self.engine.gathered(p):
            self.assertTrue(torch.equal(p, 2 * kept))
        with torch.no_grad():
            wanted = self.engine(**batch_of(5)).logits
            with self.engine.gathered():
                self.assertTrue(torch.equal(self.engine(**batch_of(5)).logits, wanted))
        with self.assertRaisesRegex(ValueError, "not of this engine"), self.engine.gathered(torch.nn.Parameter(torch.ones(3))):
            pass

    def test_state_dicts_and_files(self) -> None:
        state = weights(self.engine)
        with tempfile.TemporaryDirectory() as scratch:
            self.module.save_pretrained(scratch)
            again = transformers.LlamaForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16)
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
        other = Engine(llama(initializer_range=0.5), {**SINGLE, **tier("cpu", ""), **BF16})
        self.assertEqual(str(other.module.load_state_dict(state)), "<All keys matched successfully>")
        self.assertTrue(all(torch.equal(value, state[name]) for name, value in weights(other).items()))
        with torch.no_grad():
            self.assertTrue(torch.equal(other(**batch_of(5)).logits, again(**batch_of(5)).logits))

    def test_evaluation_and_generation(self) -> None:
        batch = {name: value for name, value in batch_of(9).items() if name != "labels"}
        for make in (llama, lambda: t5(cache=True)):
            engine = Engine(make(), {**SINGLE, **tier("cpu", "")})
            train(engine, range(1))
            engine.eval()
            plain = make()
            plain.load_state_dict(weights(engine))
            plain.eval()
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    wanted = plain.generate(**batch, max_new_tokens=4, do_sample=False)
                    self.assertTrue(torch.equal(engine.module.generate(**batch, max_new_tokens=4, do_sample=False), wanted))
            with torch.no_grad():
                engine.module.get_encoder()(**batch) if make is not llama else None  # an evaluation of a part ends by itself
            train(engine, range(1, 2))

    def test_save_and_resume(self) -> None:
        from .common import flip  # a script has no package

        with tempfile.TemporaryDirectory() as scratch:
            first = Engine(llama(), {**SINGLE, **tier("nvme", scratch)}, save=f"{scratch}/saves")
            train(first, range(2))
            first.save(f"{scratch}/run")
            wanted = train(first, range(2, 4)), weights(first)
            first.destroy()
            second = Engine(llama(initializer_range=0.5), {**SINGLE, **tier("cpu", "")}, example=batch_of(0))
            second.load(f"{scratch}/run")
            flip(Path(scratch) / "run" / "global_step2" / "strata" / "set.0")
            for alone in (False, True):
                with self.assertRaisesRegex(strata.Error, "set.0"):
                    second.load(f"{scratch}/run", weights_only=alone)
            self.assertEqual(train(second, range(2, 4)), wanted[0])
            self.assertTrue(all(torch.equal(value, wanted[1][name]) for name, value in weights(second).items()))

    def test_weights_outlive_their_engine(self) -> None:
        """In memory, or in a file; another engine goes on with them."""
        for how, where in (("cpu", ""), ("nvme", ".")):
            for drops in (False, True):
                module = llama()
                plain = copy.deepcopy(module)
                engine = Engine(module, {**SINGLE, **tier(how, where)})
                train(engine, range(1))
                wanted = weights(engine)
                engine.destroy() if not drops else None
                del engine
                plain.load_state_dict(wanted)
                self.assertTrue(all(torch.equal(value, wanted[name]) for name, value in module.state_dict().items()))
                self.assertTrue(torch.equal(module(**batch_of(1)).loss, plain(**batch_of(1)).loss))
                self.assertNotIn("forward", vars(module.model.layers[0]))
                runs = [train(Engine(one, {**SINGLE, **tier("cpu", "")}), range(1, 3)) for one in (module, plain)]
                self.assertEqual(*runs)

    def test_weights_without_room_are_gone(self) -> None:
        module = wide()
        engine = Engine(module, {**SINGLE, **tier("nvme", ".")})
        full = mock.patch("strata.torch.mapped._segment", side_effect=OSError(28, "No space left on device"))
        with full, self.assertLogs("strata", "WARNING") as said:
            engine.destroy()
        self.assertIn("gone with their engine: [Errno 28]", said.output[0])
        with self.assertRaisesRegex(RuntimeError, "layers.0.*is paged"):
            module.model.layers[0].mlp.up_proj.weight.sum()

    def test_deepspeed_gathers(self) -> None:
        module = llama()
        engine = deepspeed.initialize(model=module, config={**SINGLE, **tier("cpu", "")})[0]
        engine.backward(engine(**batch_of(0)).loss)
        engine.step()
        p = module.model.layers[2].self_attn.q_proj.weight
        for number, rank in ((1.0, 0), (2.0, None)):
            with deepspeed.zero.GatheredParameters([None, *module.parameters()], modifier_rank=rank):
                p.data.fill_(number)
        state = engine._zero3_consolidated_16bit_state_dict()
        self.assertTrue(bool((state["model.layers.2.self_attn.q_proj.weight"] == 2).all()))
        engine.destroy()

    def test_trace_and_a_larger_batch(self) -> None:
        told = str(trace(t5(), batch_of(0)))
        for part in ("4 layers page", "decoder.block.1", "2 x 10 x 32 float32, 2,560 bytes", "resident: shared"):
            self.assertIn(part, told)
        engine, other = (Engine(llama(), {**SINGLE, **tier("cpu", "")}, boundary_bytes=size) for size in (64, 0))
        with self.assertLogs("strata", "WARNING") as said:
            self.assertEqual(train(engine, range(2)), train(other, range(2)))
        self.assertIn("is given 2560 bytes, more than a boundary of 64", said.output[0])

    def test_room_for_inputs_by_the_configuration(self) -> None:
        """DeepSpeed's initialize() has no example."""
        with self.assertLogs("strata", "WARNING") as said:
            for size in (64, 2560):
                config = {**SINGLE, **tier("cpu", ""), "strata": {"boundary_bytes": size}}
                engine = deepspeed.initialize(model=llama(), config=config)[0]
                engine.backward(engine(**batch_of(0)).loss)
                engine.step()
                engine.destroy()
        self.assertEqual({"more than a boundary of 64" in line for line in said.output}, {True})


MEMORY = """
import re, sys
from strata import deepspeed
deepspeed.install()
import torch, transformers
from transformers.integrations import HfDeepSpeedConfig

def peak():
    text = open("/proc/self/status").read()
    told.append(int(re.search(r"VmHWM:\\s+(\\d+)", text)[1]) >> 10)

told, place = [], sys.argv[1]
offload = {"device": "nvme", "nvme_path": place}
zero = {"stage": 3, "offload_param": offload, "offload_optimizer": offload}
config = {"train_batch_size": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
          "zero_optimization": zero, "strata": {"device_memory": "128MiB", "host_memory": "192MiB"}}
deepspeed.init_distributed()
kept = HfDeepSpeedConfig(config)
transformers.LlamaForCausalLM.from_pretrained(place + "/small", dtype=torch.bfloat16)  # what is imported late
peak()
model = transformers.LlamaForCausalLM.from_pretrained(place + "/large", dtype=torch.bfloat16)
peak()
engine = deepspeed.initialize(model=model, config=config)[0]
peak()
state = engine._zero3_consolidated_16bit_state_dict()
peak()
print(sum(value.nbytes for value in state.values()) >> 20, *told)
"""


FULL = """
import os, sys
import torch
from strata import deepspeed
place, size = sys.argv[1], 1 << 20
room = deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": place}}})
free = lambda: os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
with room:
    given = [torch.nn.Linear(size // 4, 1, bias=False) for _ in range(4)]  # of eight that there are
    assert free() < 5 * size, free()
    del given
    assert free() > 7 * size, free()
    given = [torch.nn.Linear(size // 8, 1, bias=False) for _ in range(2)]
    try:
        while True:
            given.append(torch.nn.Linear(size // 4, 1, bias=False))
    except OSError as error:
        print(len(given), error)
for linear in given:
    torch.nn.init.ones_(linear.weight)
"""

CHANGED = """
import os, sys
import safetensors.torch, torch
from strata import deepspeed
from strata.torch import mapped
place = sys.argv[1]
safetensors.torch.save_file({"weight": torch.ones(512, 1024)}, place)
with deepspeed.zero.Init():
    linear = torch.nn.Linear(1024, 512, bias=False)
linear.load_state_dict(safetensors.torch.load_file(place))
assert mapped.source_of(linear.weight) is not None
with torch.no_grad():
    linear.weight[0] *= 2  # a page of this process's own
assert mapped.copied(linear.weight.data).sum() == 513 * 1024
os.truncate(place, 4096)
try:
    mapped.copied(linear.weight.data)
except RuntimeError as error:
    print(error)
"""


class Files(unittest.TestCase):
    """Weights that are not whole in memory."""

    def test_a_full_drive_is_refused_before_anything_is_written_there(self) -> None:
        mounted = 'mount -t tmpfs -o size=8m none "$1" || exit 77; shift; exec "$@"'
        with tempfile.TemporaryDirectory() as scratch:
            words = ["unshare", "-rm", "sh", "-c", mounted, "sh", scratch, sys.executable, "-c", FULL, scratch]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            try:
                done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
            except FileNotFoundError:
                self.skipTest("there is no unshare")
        if done.returncode == 77 or done.stderr.startswith("unshare:"):
            self.skipTest("nothing can be mounted here")
        self.assertEqual(done.returncode, 0, done.stderr)
        for said in ("9 ", "No space left on device: a weight of 1,048,576 bytes", "name another drive as nvme_path", scratch):
            self.assertIn(said, done.stdout)

    def test_a_file_that_changes_while_weights_wait_in_it_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            self.assertIn(
                "/a has weights that wait there for their engine, and was changed since they were loaded: it had 2,0",
                run_script("-c", CHANGED, f"{scratch}/a"),
            )
            wide().save_pretrained(scratch)
            file = Path(scratch) / "model.safetensors"
            state = file.read_bytes()
            for made in (state[:-100], bytes(len(state)), state + b"more"):
                file.write_bytes(state)
                with deepspeed.zero.Init():
                    model = wide()
                model.load_state_dict(safetensors.torch.load_file(file), strict=False)
                with file.open("r+b") as there:
                    there.truncate(len(made))
                    there.write(made)
                for use in (lambda m: Engine(m, {**SINGLE, **tier("cpu", "")}), lambda m: trace(m, batch_of(0))):
                    with self.assertRaisesRegex(RuntimeError, rf"{file} has .* had {len(state):,} bytes and has {len(made):,}"):
                        use(model)

    def test_they_stay_in_files_until_an_engine_takes_them(self) -> None:
        plain = wide()
        name = "model.layers.0.mlp.up_proj.weight"
        with tempfile.TemporaryDirectory() as scratch:
            plain.save_pretrained(scratch)
            file = f"{scratch}/model.safetensors"
            for device in ("nvme", "cpu"):
                config = {**SINGLE, **tier(device, scratch)}
                with deepspeed.zero.Init(config_dict_or_path=config):
                    made = wide(initializer_range=0.5)
                    fresh = wide()
                self.assertEqual(sorted(os.listdir(scratch)), ["config.json", "generation_config.json", "model.safetensors"])
                self.assertTrue(all(map(torch.equal, fresh.parameters(), plain.parameters())))
                self.assertIsNone(source_of(made.get_parameter(name)))
                state = safetensors.torch.load_file(file)
                changed = "model.layers.1.mlp.up_proj.weight"
                state[changed] *= 3
                made.load_state_dict(state, strict=False)
                state[changed].zero_()  # copied
                self.assertEqual(source_of(made.get_parameter(name))[0], file)
                self.assertIsNone(source_of(made.get_parameter(changed)))
                release(made.parameters())
                with torch.no_grad():
                    made.get_parameter(name)[0] *= 2
                self.assertIsNone(source_of(made.get_parameter(name)))
                release(made.parameters())  # but for what is this process's alone
                wanted = plain.state_dict()
                wanted = {**wanted, changed: 3 * wanted[changed], name: wanted[name].clone()}
                wanted[name][0] *= 2
                engine = Engine(made, config)
                for key, value in weights(engine).items():
                    self.assertTrue(torch.equal(value, wanted[key]), key)
                engine.destroy()
            self.assertTrue(torch.equal(safetensors.torch.load_file(file)[name], plain.state_dict()[name]))

    def test_evaluation_within_a_step_reads_frozen_weights_from_their_file(self) -> None:
        """As DPO's reference pass does, between forward and backward."""

        def made(scratch: str, freezes: str) -> Engine:
            config = {**CONFIG, **tier("nvme", scratch)}
            with deepspeed.zero.Init(config_dict_or_path=config):
                model = wide(initializer_range=0.5)
            model.load_state_dict(safetensors.torch.load_file(f"{scratch}/model.safetensors"), strict=False)
            for name, p in model.named_parameters():
                p.requires_grad_(not name.startswith(freezes))
            return Engine(model, config)

        def steps(engine: Engine, evaluates: bool) -> tuple[list[float], list[torch.Tensor]]:
            losses, found = [], []
            for step in range(4):
                loss = engine(**batch_of(step)).loss
                if evaluates:
                    with torch.no_grad():
                        found.append(engine(**batch_of(9)).logits)
                engine.backward(loss)
                if not evaluates:
                    engine.step()
                    with torch.no_grad():
                        found.append(engine(**batch_of(9)).logits) if step % 2 else None
                else:
                    engine.step()
                losses.append(float(loss.detach()))
            return losses, found

        with tempfile.TemporaryDirectory() as scratch:
            wide().save_pretrained(scratch)
            within, between = made(scratch, "model.layers"), made(scratch, "model.layers")
            ours, theirs = steps(within, True), steps(between, False)
            self.assertEqual(ours[0], theirs[0])
            self.assertTrue(torch.equal(ours[1][2], theirs[1][0]))  # after one update
            self.assertTrue(all(map(torch.equal, weights(within).values(), weights(between).values())))
            name = "model.layers.1.mlp.up_proj.weight"
            with within.gathered(), torch.no_grad():
                within.module.get_parameter(name).mul_(2)  # which the file has not
            engines = {name: within, "model.layers.0.input_layernorm.weight": made(scratch, "model.layers.0.mlp")}
            for refused, engine in engines.items():
                with self.assertRaisesRegex(RuntimeError, f"within a step, where {refused} cannot be read.*precompute"):
                    steps(engine, True)
                engine.drop()

    def test_a_model_is_never_whole_in_memory(self) -> None:
        sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "vocab_size": 1000}
        with tempfile.TemporaryDirectory() as scratch:
            large = llama(**sizes, num_hidden_layers=12).to(torch.bfloat16)
            large.save_pretrained(f"{scratch}/large")
            del large
            llama().save_pretrained(f"{scratch}/small")
            whole, start, loaded, engine, state = map(int, run_script("-c", MEMORY, scratch).split())
        self.assertGreater(whole, 250)
        self.assertLess(loaded - start, whole / 4)
        self.assertLess(engine - start, 320 + whole / 2)
        self.assertLess(state - engine, whole / 4)


class Net(torch.nn.Module):
    """Layers in a plain list, run in the order that is asked for."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(8, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.order = order
        self.change: Callable[[torch.Tensor], Any] = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for i in self.order:
            x = self.change(self.blocks[i](x))
        return x.square().mean()


class InPlace(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return super().forward(x)


class Held:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Takes(torch.nn.Linear):
    def forward(self, held: Held) -> Any:  # type: ignore[override]
        return super().forward(held.value)


class Gives(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return Held(super().forward(x))


class WrongUses(unittest.TestCase):
    x = torch.ones(2, 8)

    def engine(self, module: torch.nn.Module | None = None, **members: Any) -> Engine:
        return Engine(module or Net(), {**CONFIG, **tier("cpu", "")}, **members)

    def refused(self, kind: type[Exception], text: str, work: Callable[[], Any]) -> None:
        with self.assertRaisesRegex(kind, text):
            work()

    def goes_on(self, engine: Engine) -> None:
        """After what was refused a step runs."""
        engine.module.order = (0, 1, 2)
        engine.drop()
        for _ in range(2):
            engine.backward(engine(self.x))
            made = engine.step()
        self.assertIsNotNone(made)

    def test_order(self) -> None:
        for order, text in (
            ((1, 0, 2), "^blocks.1 runs forward, and forward of blocks.0 was expected"),
            ((0, 0, 1), "^blocks.0 runs forward, and forward of blocks.1 was expected"),
            ((0, 2), "^blocks.2 runs forward, and forward of blocks.1 was expected"),
            ((0, 1, 2, 2), "^blocks.2 runs forward, and backward of blocks.2 was expected"),
            ((0, 1), "^blocks.1 runs backward, and forward of blocks.2 was expected"),
        ):
            engine = self.engine(Net(order))
            self.refused(RuntimeError, text, lambda: engine.backward(engine(self.x)))  # noqa: B023
            self.goes_on(engine)
        for order, text in (((0, 1, 1, 2), "blocks.1 runs 2 times"), ((0, 1), "blocks.2 runs 0 times")):
            self.refused(ValueError, text, lambda: self.engine(Net(order), example=self.x))  # noqa: B023
            self.assertIn(f"problem: {text}", str(trace(Net(order), self.x)))
        turned = self.engine(Net((2, 0, 1)), example=self.x)  # an example shows the order
        turned.backward(turned(self.x))

    def test_steps(self) -> None:
        engine = self.engine()
        engine(self.x)
        self.refused(RuntimeError, "^blocks.0 runs forward, and backward of blocks.2 was expected", lambda: engine(self.x))
        self.goes_on(engine)
        loss = engine(self.x)
        self.refused(RuntimeError, "call engine.backward", loss.backward)
        engine.module.zero_grad()
        self.goes_on(engine)
        loss = engine(self.x)
        engine.backward(loss, retain_graph=True)
        self.refused(RuntimeError, "^blocks.2 runs backward, and engine.step.. was expected", lambda: engine.backward(loss))
        self.goes_on(engine)
        engine.backward(engine(self.x))
        self.refused(RuntimeError, "^blocks.0 runs forward, and engine.step.. was expected", lambda: engine(self.x))
        self.goes_on(engine)
        engine.backward(engine(self.x))
        self.refused(RuntimeError, "between steps", lambda: engine.module.state_dict())
        self.refused(RuntimeError, "between steps", lambda: engine.gathered().__enter__())
        with torch.no_grad():
            self.refused(RuntimeError, "runs without gradients within a step", lambda: engine(self.x))
        engine.step()
        engine(self.x)
        self.refused(RuntimeError, "the step ends, and backward of blocks.2 was expected", engine.step)
        self.goes_on(engine)
        engine.boundary = True  # a step of fewer micro-batches
        engine.backward(engine(self.x))
        self.assertIsNotNone(engine.step())
        engine.destroy()
        self.refused(RuntimeError, "destroyed", lambda: engine.backward(engine(self.x)))

    def test_modules(self) -> None:
        batched, twice = Net(), Net()
        batched.blocks[1] = torch.nn.BatchNorm1d(8)
        twice.blocks[2] = twice.blocks[0]
        for module, members, text in (
            (Net(), {"layers": "bricks"}, "Net has no bricks"),
            (Net(), {"layers": ["blocks", "blocks.1"]}, "blocks.1 and blocks.1 are one module"),
            (twice, {"layers": ["blocks.0", "blocks.2"]}, "are one module"),
            (batched, {"layers": "blocks"}, "blocks.1 counts what runs through it"),
            (Net(), {"boundary_bytes": -1}, "boundary_bytes is -1"),
        ):
            self.refused(ValueError, text, lambda: self.engine(module, **members))  # noqa: B023
        for kind, error, text in (
            (InPlace, RuntimeError, "^blocks.1 changes what it is given in place"),
            (Takes, ValueError, "^blocks.1 is given a Held, whose value is a tensor"),
            (Gives, ValueError, "^blocks.1 returns a Held, whose value is a tensor"),
        ):
            net = Net()
            net.blocks[1] = kind(8, 8)
            net.blocks[0].requires_grad_(kind is not InPlace)
            net.first.requires_grad_(kind is not InPlace)  # PyTorch itself refuses it where a gradient is needed
            if kind is Takes:
                net.change = Held
            engine = self.engine(net)
            self.refused(error, text, lambda: engine(self.x))  # noqa: B023
        with self.assertLogs("strata", "WARNING") as said:
            stays = self.engine(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        self.assertIn("stay resident in spite of offload_param: Sequential has no list of layers", said.output[0])
        stays.backward(stays(self.x).sum())
        self.refused(ValueError, "^overlap", lambda: self.engine(overlap=True))
        engine = self.engine(llama())
        self.refused(ValueError, "output_router_logits", lambda: engine(**batch_of(0), output_router_logits=True))
        moved = self.engine()
        moved.module.blocks[1].weight.data = torch.zeros(8, 8)
        self.refused(RuntimeError, "^blocks.1.weight lies elsewhere", lambda: moved.backward(moved(self.x)))

    def test_what_a_hook_keeps_of_a_forward_has_no_gradient(self) -> None:
        for frozen in (False, True):
            net = Net()
            net.blocks[1] = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
            net.blocks.requires_grad_(not frozen)
            engine = self.engine(net)
            kept: list[torch.Tensor] = []
            hook = net.blocks[1][0].register_forward_hook(lambda m, given, made: kept.append(made))  # noqa: B023
            loss = engine(self.x)
            text = "^blocks.1 pages: what a hook" if frozen else "blocks.1.* pages"
            self.refused(RuntimeError, text, lambda: engine.backward(loss + kept[0].sum()))  # noqa: B023
            hook.remove()
            self.goes_on(engine)

    def test_shared_and_named_tensors(self) -> None:
        """Tensors that need gradients come by keyword and go through several layers; a weight of two layers is resident."""

        class Biased(torch.nn.Linear):
            def forward(self, x: torch.Tensor, *, bias: torch.Tensor, note: str) -> Any:
                told = torch.tanh(super().forward(x) + bias)
                return {"x": told, "bias": bias * 2, "note": note, "count": torch.ones(2).long()}

        class Shares(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.start = torch.nn.Parameter(torch.ones(8))
                self.blocks = torch.nn.ModuleList(Biased(8, 8) for _ in range(4))
                self.blocks[2].weight = self.blocks[0].weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                told = {"x": x, "bias": self.start}
                for block in self.blocks:
                    told = block(told["x"], bias=told["bias"], note="n")
                    assert told["note"] == "n"
                return functional.mse_loss(told["x"] * told["bias"], x)

        made = []
        for engine in (Engine(Shares(), SINGLE), Engine(Shares(), {**SINGLE, **tier("cpu", "")})):
            losses = []
            for step in range(6):
                engine.backward(engine(self.x + step))
                if (told := engine.step()) is not None:
                    losses.append((told.loss, told.grad_norm))
            made.append((losses, weights(engine)))
        self.assertEqual(made[0][0], made[1][0])
        self.assertTrue(all(torch.equal(value, made[1][1][name]) for name, value in made[0][1].items()))


def run_script(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def wide(**changes: Any) -> Any:
    """Some of its tensors are large enough to stay in a file."""
    return llama(hidden_size=96, intermediate_size=192, **changes)


def run_rank(model: Any, rank: int, ranks: int, scratch: str) -> dict[str, torch.Tensor]:
    """Four micro-batches a step, of all ranks together."""
    config: dict[str, Any] = {
        **{**CONFIG, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "strata": {"leaves": 4}},
        **{"gradient_accumulation_steps": 4 // ranks, **tier("nvme", scratch)},
    }
    engine = Engine(model, config, example=batch_of(0))
    for step in range(3):
        for micro in range(4 // ranks):
            engine.backward(engine(**batch_of(4 * step + (4 // ranks) * rank + micro)).loss)
            engine.step()
    return weights(engine)


def main_of_a_rank() -> None:
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    kept = transformers.integrations.HfDeepSpeedConfig(tier("nvme", sys.argv[1]))
    model = transformers.LlamaForCausalLM.from_pretrained(f"{sys.argv[1]}/model")
    assert kept.is_zero3() and source_of(model.model.layers[0].mlp.up_proj.weight) is not None
    torch.save(run_rank(model, rank, ranks, sys.argv[1]), f"{sys.argv[1]}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main_of_a_rank()
