#!/usr/bin/env python3
"""Train tokenizers of several shapes with the reference library, and write what it says about texts.

Never run by tests or CI; its output is committed.  Needs tokenizers, sentencepiece and transformers (pip install
tokenizers==0.22.2 sentencepiece==0.2.3 transformers==4.57.6):

    python3 tools/make_golden_tokenizers.py [--out tests/golden/tokenizers] [--vocab 420] [--text FILE]

The shapes are those of the tokenizer.json of GPT-2, Llama 2, Llama 3, Qwen2, SmolLM, Phi-3 and gpt-oss: their normalizers, pre-tokenizers,
post-processors, decoders and kinds of added tokens.  The vocabularies are small, and trained on the text given, or on this
repository's documents.  sentencepiece/tokenizer.model is one of SentencePiece's own, and its answers are those of what transformers
makes of it.  Of each shape: NAME.json; and golden.json with texts and, for each
shape and text and one text of every character, hashes of the ids and of what they decode to.
"""
import argparse
import json
import os
import random

import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_OSS = "|".join([  # o200k
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDING}", rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDING}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
BYTES = ["<0x%02X>" % b for b in range(256)]


def special(text, **flags):
    return AddedToken(text, special=True, **flags)


def byte_level(vocab, lines, tokenizer, tokens, **model):
    """Trains the merges, then gives the model the flags that training does not know."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=16
    )
    tokenizer.train_from_iterator(lines, trainer)
    saved = json.loads(tokenizer.to_str())
    saved["model"].update(model)
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.add_tokens(tokens)
    return tokenizer


def gpt2(vocab, lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return byte_level(vocab, lines, tokenizer, [special("<|endoftext|>", normalized=True)])


def llama3(vocab, lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [special(t, normalized=False) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>")]
    tokenizer = byte_level(vocab, lines, tokenizer, tokens, ignore_merges=True)
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1", special_tokens=[("<|begin_of_text|>", bos)]
            ),
        ]
    )
    return tokenizer


def qwen2(vocab, lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [special(t, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    tokens.append(AddedToken("<tool_call>", special=False, normalized=False))
    return byte_level(vocab, lines, tokenizer, tokens)


def smollm(vocab, lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer_tokens = [special(t, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>")]
    return byte_level(vocab, lines, tokenizer, trainer_tokens)


def llama_like(vocab, lines, tokens, metaspace=None):
    """Llama 2's: trained with words that begin with the replacement of the space; bytes for what is unknown."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, limit_alphabet=120, max_token_length=16)
    trained.train_from_iterator(lines, trainer)
    model = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>"] + BYTES
    ids = {text: i for i, text in enumerate(first)}
    for text in sorted(model["vocab"], key=model["vocab"].get):
        ids.setdefault(text, len(ids))
    merges = [tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace is None:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme=metaspace, split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.add_tokens(tokens)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def llama2(vocab, lines):
    return llama_like(vocab, lines, [special(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])


def mistral(vocab, lines):
    return llama_like(vocab, lines, [special(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")], "first")


def phi3(vocab, lines):
    tokens = [special(t, normalized=False) for t in ("<unk>", "<s>")] + [AddedToken("</s>", special=False, normalized=False, rstrip=True)]
    tokens += [special(t, normalized=False, rstrip=True) for t in ("<|assistant|>", "<|end|>", "<|user|>")]
    tokens.append(special("<|endoftext|>", normalized=False))
    tokenizer = llama_like(vocab, lines, tokens)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    return tokenizer


def gemma(vocab, lines):
    """Spaces replaced, nothing split, tokens of several words; normalized tokens."""
    tokenizer = llama_like(vocab, lines, [special(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "<start_of_turn>")])
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("two words", normalized=True), AddedToken("  ", normalized=False)])
    return tokenizer


def corners(vocab, lines):
    """Every kind of added token, and parts that no known model uses together."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("--", "\u2014")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("-", "removed"), pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens = [
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("<left>er", normalized=False),
        AddedToken("caf\u00e9", normalized=True),
        special("<|special|>", normalized=False),
    ]
    return byte_level(vocab, lines, tokenizer, tokens)


def gpt_oss(vocab, lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(GPT_OSS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tokens = [special(t, normalized=False) for t in ("<|startoftext|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|end|>")]
    return byte_level(vocab, lines, tokenizer, tokens)


SHAPES = {"gpt2": gpt2, "llama2": llama2, "llama3": llama3, "qwen2": qwen2, "smollm": smollm, "phi3": phi3}
MORE = {"mistral": mistral, "gemma": gemma, "corners": corners, "gpt_oss": gpt_oss}


def sentencepiece_model(vocab, lines, folder):
    """tokenizer.model, and the reference's tokenizer for it."""
    os.makedirs(folder, exist_ok=True)
    prefix = os.path.join(folder, "tokenizer")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=vocab, model_type="bpe", normalization_rule_name="identity",
        remove_extra_whitespaces=False, byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2,
    )
    os.remove(prefix + ".vocab")
    return transformers.LlamaTokenizerFast(vocab_file=prefix + ".model", add_prefix_space=True).backend_tokenizer


def texts():
    """Short texts that reach what differs between shapes."""
    rng = random.Random(20240520)
    fixed = [
        "",
        " ",
        "a",
        "Hello, world!  It's 2024 -- they'LL  have   12345 apples.\n",
        "\n\n  indented\n\tcode(x) {\r\n    return x+1;\r\n}\n\n",
        "caf\u00e9 cafe\u0301 \u1e9b\u0323 \uac00\u1100\u1161\u11a8 \u0344 \u0958 \u212b",
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd e\u0301\u0301",
        "<|endoftext|> <s></s> <|im_start|>user\nhi<|im_end|>  \n<|assistant|>  \n x <|eot_id|>\u00a0y",
        "'s 'S 'T 're don't DON'T '\u017f 'x ''' it's",
        "\u0660\u0661\u0662 \u00bd\u00b2 \u2163 123456789 1.5e-7",
        " \u00a0\u2003\u3000\u200b\u0085 \x1c\x1d end ",
        "word words sword a word. <left>er  <left> x  <both>  y<|special|>caf\u00e9s cafe\u0301 two words two\u2581words -- a--b",
        "\u2581\u2581x \u2581y z\u2581",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 3,
        "<0x41><0x0A> <unk>",
    ]
    kinds = ["the ", "and", " in", "1", "23", "\n", " ", "  ", "'", "'ll", ".", "--", "\u00e9", "e\u0301", "\u4e2d", "\U0001f600", "<s>", "<|end|>",
             "\u2581", "\t", "\r\n", "\u0301", "A", "Zz", "\u05d0", "\u0e01\u0e33", "_", "<|im_end|>", "\u3000", "\u00a0"]
    mixed = ["".join(rng.choice(kinds) for _ in range(rng.randrange(1, 60))) for _ in range(24)]
    return fixed + mixed


def every_character():
    """All planes that have characters, with spaces and letters between them."""
    codes = [c for c in list(range(0x33480)) + list(range(0xE0000, 0xE0200)) if not 0xD800 <= c < 0xE000]
    return "".join(chr(c) + (" " if c % 7 == 0 else "e" if c % 5 == 0 else "") for c in codes)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%016x" % value


def digest(ids):
    return fnv1a(b"".join(i.to_bytes(4, "little") for i in ids))


def row(tokenizer, text):
    """[count and hash of the ids, hash of what they decode to, ids more with special tokens, hash with those as text]"""
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    full = tokenizer.encode(text).ids
    tokenizer.encode_special_tokens = True
    as_text = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = False
    decoded = tokenizer.decode(plain, skip_special_tokens=False).encode()
    return [len(plain), digest(plain), fnv1a(decoded), len(full) - len(plain), digest(as_text)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="tests/golden/tokenizers")
    parser.add_argument("--vocab", type=int, default=420)
    parser.add_argument("--text", nargs="*", default=["README.md", "docs/data.md", "docs/design.md"])
    parser.add_argument("--no-golden", action="store_true")
    arguments = parser.parse_args()
    lines = []
    for path in arguments.text:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines += file.readlines()
    os.makedirs(arguments.out, exist_ok=True)
    versions = {m.__name__: m.__version__ for m in (tokenizers, sentencepiece, transformers)}
    answers = {"versions": versions, "texts": texts(), "shapes": {}}
    for name, make in {**SHAPES, **MORE}.items():
        tokenizer = make(arguments.vocab, lines)
        saved = json.loads(tokenizer.to_str())
        with open(os.path.join(arguments.out, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(saved, file, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_file(os.path.join(arguments.out, name + ".json"))
        if not arguments.no_golden:
            answers["shapes"][name] = [row(tokenizer, text) for text in texts() + [every_character()]]
    if not arguments.no_golden:
        tokenizer = sentencepiece_model(arguments.vocab, lines, os.path.join(arguments.out, "sentencepiece"))
        answers["shapes"]["sentencepiece"] = [row(tokenizer, text) for text in texts() + [every_character()]]
        with open(os.path.join(arguments.out, "golden.json"), "w", encoding="utf-8") as file:
            json.dump(answers, file, separators=(",", ":"))


main()
