"""Text to a model's tokens and back, and conversations as the model was taught them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ._abi import Text, encoded
from ._calls import Handle, blocked
from ._handles import facts
from ._report import abi

Message = Mapping[str, str]


def ids_array(ids: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(ids))(*ids)


class Tokenizer(Handle):
    """The tokenizer of a model's directory, a checkpoint, or a file."""

    def __init__(self, path: Text) -> None:
        def work() -> Any:
            opened = abi().handle("strata_tokenizer")
            abi().strata_tokenizer_open(ctypes.byref(opened), encoded(path))
            return opened

        super().__init__(blocked(work), "strata_tokenizer_close")
        told = facts("strata_tokenizer", "info", self.pointer)
        self.vocab: int = told.vocab
        self.bos: int | None = told.bos if told.bos >= 0 else None
        self.eos: int | None = told.eos if told.eos >= 0 else None

    def __len__(self) -> int:
        return self.vocab

    def encode(self, text: str, *, add_special: bool = False, special_as_text: bool = False) -> list[int]:
        """Tokens of a text; `add_special`: also what the tokenizer puts before and after one."""
        data = text.encode("utf-8", "replace")
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        opts = abi().make("strata_encode_opts", add_special=add_special, special_as_text=special_as_text)
        abi().strata_tokenizer_encode(self.pointer, data, len(data), ctypes.byref(opts), ctypes.byref(ids), ctypes.byref(count))
        return ids[: count.value]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text, size = ctypes.c_char_p(), ctypes.c_size_t()
        abi().strata_tokenizer_decode(
            self.pointer, ids_array(ids), len(ids), skip_special, ctypes.byref(text), ctypes.byref(size)
        )
        return ctypes.string_at(text, size.value).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int], *, skip_special: bool = True) -> Iterator[str]:
        """The text of tokens as they come, in whole characters; all pieces together are what decode() gives."""
        opened = abi().handle("strata_stream")
        abi().strata_stream_open(ctypes.byref(opened), self.pointer, skip_special)
        text, size = ctypes.c_char_p(), ctypes.c_size_t()
        with Handle(opened, "strata_stream_close") as stream:
            for token in ids:
                abi().strata_stream_push(stream.pointer, token, ctypes.byref(text), ctypes.byref(size))
                if size.value:
                    yield ctypes.string_at(text, size.value).decode("utf-8", "replace")
            abi().strata_stream_finish(stream.pointer, ctypes.byref(text), ctypes.byref(size))
            if size.value:
                yield ctypes.string_at(text, size.value).decode("utf-8", "replace")

    def chat(
        self,
        messages: Iterable[Message],
        *,
        template: Text | None = None,
        date: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """A conversation, each message with "role" and "content", and the beginning of the assistant's next one."""
        return Conversation(self, messages, template, date, template_kwargs)


class Conversation(Handle):
    """Messages and the template that writes them."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        messages: Iterable[Message],
        template: Text | None,
        date: str | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> None:
        opened = abi().handle("strata_chat")
        opts = abi().make(
            "strata_chat_opts",
            chat_template=template,
            date=date,
            chat_template_kwargs=None if template_kwargs is None else json.dumps(template_kwargs),
        )
        blocked(lambda: abi().strata_chat_open(ctypes.byref(opened), tokenizer.pointer, ctypes.byref(opts)))
        super().__init__(opened, "strata_chat_close")
        for message in messages:
            self.add(message["role"], message["content"])

    def add(self, role: str, content: str) -> None:
        abi().strata_chat_add(self.pointer, encoded(role), encoded(content))

    @property
    def ids(self) -> list[int]:
        """Tokens of the whole conversation, with what begins the assistant's next message."""
        ids, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        abi().strata_chat_tokens(self.pointer, ctypes.byref(ids), ctypes.byref(count))
        return ids[: count.value]

    @property
    def end(self) -> int | None:
        """The token that ends an assistant's message, if one is known."""
        token = int(abi().strata_chat_end(self.pointer))
        return token if token >= 0 else None
