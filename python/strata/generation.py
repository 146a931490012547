"""A model that continues texts and conversations."""

from __future__ import annotations

import codecs
import ctypes
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ._abi import Text
from ._calls import Handle, Stop, blocked
from ._handles import Config, Engine, Machine, Model, Plan, open_config
from ._library import Library
from ._report import abi
from .errors import Error
from .tokenizer import Message, Tokenizer, ids_array

_BYTES = 256  # the vocabulary of models whose tokens are bytes


class Generator:
    """A model, loaded; texts one after another.  What a text has in common with the one before is not computed again.

    model      a directory as Hugging Face writes it, or a checkpoint
    tokenizer  a directory or file; default: the model's own, or bytes where it has none
    context    tokens of a prompt and its continuation
    temperature, top_k, top_p, repetition_penalty  in place of what the model's files say; 0 temperature: the likeliest
    """

    def __init__(
        self,
        model: Text,
        *,
        tokenizer: Text | None = None,
        context: int = 4096,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 0,
        repetition_penalty: float = 0,
        seed: int = 0,
        config: Config = None,
        overrides: Mapping[str, Any] | None = None,
        machine: Machine | None = None,
    ) -> None:
        stop = Stop()

        def work() -> None:
            opened = open_config(config, overrides, forward_only=True)
            self._model = Model(
                opened, model, "GENERATE", prompt_tokens=1, cache_tokens=context, seed=seed, progress=stop.function
            )
            plan = Plan(self._model, (machine or Machine()).open())
            if plan.refused is not None:
                raise plan.refused
            self._engine = Engine(plan, self._model)
            abi().strata_engine_load(self._engine.pointer)

        self._tokenizer = self._open_tokenizer(tokenizer or model, tokenizer is not None)
        stop.call(work)
        if self._tokenizer is None and self._model.info.vocab != _BYTES:
            self.close()
            raise ValueError(f"{model!s} has no tokenizer for its {self._model.info.vocab} tokens: name one with tokenizer=")
        temperature_ = None if temperature is None else ctypes.pointer(ctypes.c_double(temperature))
        self._asked = abi().make(
            "strata_sampling_opts",
            temperature=temperature_,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        self._generation: Handle | None = None
        self._stop = threading.Event()

    @staticmethod
    def _open_tokenizer(path: Text, named: bool) -> Tokenizer | None:
        try:
            return Tokenizer(path)
        except Error:
            if named:
                raise
            return None

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._generation is not None:
            self._generation.close()
        self._engine.close()

    def stream(self, prompt: str, *, max_tokens: int = 0) -> Iterator[str]:
        """The continuation of a text, piece by piece; 0: as many tokens as the model gives by default."""
        ids = list(prompt.encode()) if self._tokenizer is None else self._tokenizer.encode(prompt, add_special=True)
        return self._pieces(ids, max_tokens or int(abi().constant("STRATA_MAX_TOKENS_DEFAULT")), None)

    def chat(self, messages: Iterable[Message], *, max_tokens: int = 0, template: Text | None = None) -> Iterator[str]:
        """The assistant's next message, piece by piece; 0: up to its end."""
        if self._tokenizer is None:
            raise ValueError("a conversation needs a tokenizer: name one with tokenizer=")
        with self._tokenizer.chat(messages, template=template) as conversation:
            return self._pieces(conversation.ids, max_tokens, conversation.end)

    def tokens(self, ids: Iterable[int], *, max_tokens: int = 0, end: int | None = None) -> Iterator[int]:
        """The tokens that follow these, the one that ends the text among them."""
        given = list(ids)
        generation = self._begin(max_tokens, end)
        self._call(lambda: abi().strata_generation_begin(generation.pointer, ids_array(given), len(given)))
        token = ctypes.c_int32()
        while True:
            self._call(lambda: abi().strata_generation_next(generation.pointer, ctypes.byref(token)))
            if token.value < 0:
                return
            yield token.value

    def _begin(self, max_tokens: int, end: int | None) -> Handle:
        def work() -> Handle:
            sampling = abi().make("strata_sampling")
            abi().strata_model_sampling(self._model.pointer, ctypes.byref(sampling), ctypes.byref(self._asked))
            for token in (end, self._tokenizer.eos if self._tokenizer else None):
                if token is not None:
                    abi().strata_sampling_end_at(ctypes.byref(sampling), self._model.pointer, token)
            stop = self._stop
            self._stop_function = Library.get().callback("strata_generation_opts.stop", lambda _: stop.is_set())
            opts = abi().make("strata_generation_opts", max_tokens=max_tokens, stop=self._stop_function)
            opened = abi().handle("strata_generation")
            abi().strata_generation_open(ctypes.byref(opened), self._engine.pointer, ctypes.byref(sampling), ctypes.byref(opts))
            return Handle(opened, "strata_generation_close")

        if self._generation is not None:
            self._generation.close()
        self._generation = blocked(work)
        return self._generation

    def _call(self, work: Any) -> None:
        """Ctrl-C ends the forward pass before the next one, and the model stays loaded."""
        self._stop.clear()
        blocked(work, lambda times: self._stop.set())

    def _pieces(self, ids: list[int], max_tokens: int, end: int | None) -> Iterator[str]:
        tokens = self.tokens(ids, max_tokens=max_tokens, end=end)
        if self._tokenizer is None:
            return codecs.iterdecode((bytes([token]) for token in tokens), "utf-8", "replace")
        return self._tokenizer.stream(tokens)


def generate(model: Text, prompt: str, *, max_tokens: int = 0, **settings: Any) -> str:
    """The continuation of a text, by a model that is loaded for it; `settings` are Generator's."""
    with Generator(model, **settings) as generator:
        return "".join(generator.stream(prompt, max_tokens=max_tokens))
