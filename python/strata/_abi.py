"""The library's types and functions, made of the text that strata_abi() returns (docs/api.md, Bindings)."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "void": None,
}

Text = str | bytes | os.PathLike[str]


def encoded(value: Text) -> bytes:
    """A text or a path as the library takes it; a NUL would end it in C."""
    given = os.fspath(value)
    made = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
    if b"\0" in made:
        raise ValueError(f"{given!r} has a NUL, which no text of the library's can have")
    return made


def texts(values: Iterable[Text]) -> Any:
    """An array of texts; None if there are none."""
    made = [encoded(value) for value in values]
    return (ctypes.c_char_p * len(made))(*made) if made else None


class Abi:
    """Types and functions by their names in C.  Each is made when it is first asked for."""

    def __init__(self, library: ctypes.CDLL, check: Callable[[Any, Any, Any], None]) -> None:
        library.strata_abi.restype = ctypes.c_char_p
        self._library = library
        self._check = check
        self._told: dict[str, Any] = json.loads(library.strata_abi())
        self._structs: dict[str, Any] = {}
        self._callbacks: dict[str, Any] = {}
        self._values = {name: value for enum in self._told["enums"].values() for name, value in enum.items()}

    def __getattr__(self, name: str) -> Any:
        """A function.  One that returns a status raises it as strata.Error, and returns nothing."""
        told = self._told["functions"].get(name)
        if told is None:
            raise AttributeError(f"libstrata.so has no function {name}")
        function = getattr(self._library, name)
        function.argtypes = [self.type(param["type"]) for param in told["params"]]
        function.restype = self.type(told["returns"])
        if told["returns"] == "enum strata_status":
            function.errcheck = self._check
        setattr(self, name, function)
        return function

    def has(self, name: str) -> bool:
        return name in self._told["functions"]

    def value(self, name: str) -> int:
        """An enumerator, such as STRATA_USE_PLAN."""
        return int(self._values[name])

    def name(self, enum: str, value: int) -> str:
        """An enumerator without the first word: E_NOFIT of strata_status."""
        names = {number: name for name, number in self._told["enums"][enum].items()}
        return str(names.get(value, value)).removeprefix("STRATA_")

    def constant(self, name: str) -> Any:
        return self._told["constants"][name]

    def type(self, told: str) -> Any:
        """What ctypes has for a type of C; handles of different kinds are different types."""
        words = [word for word in told.replace("*", " * ").split() if word != "const"]
        stars = words.count("*")
        base = " ".join(word for word in words if word != "*")
        kind, _, name = base.partition(" ")
        made: Any
        if base == "char" and stars:
            made, stars = ctypes.c_char_p, stars - 1
        elif base in ("void", "FILE") and stars:
            made, stars = ctypes.c_void_p, stars - 1
        elif kind == "callback":
            made, stars = self.callback(name), stars - 1
        elif kind == "struct":
            made = self.struct(name)
        else:
            made = ctypes.c_int if kind == "enum" else _SCALARS[base]
        for _ in range(stars):
            made = ctypes.POINTER(made)
        return made

    def struct(self, name: str) -> Any:
        if name not in self._structs:
            made: Any = type(name, (ctypes.Structure,), {})
            self._structs[name] = made  # before its members, one of which may point to it
            told = self._told["structs"].get(name)
            if told is not None:
                made._fields_ = [(member["name"], self._member(member)) for member in told["members"]]
                offsets = [getattr(made, member["name"]).offset for member in told["members"]]
                if ctypes.sizeof(made) != told["bytes"] or offsets != [m["offset"] for m in told["members"]]:
                    raise ImportError(f"struct {name} of libstrata.so has another layout than ctypes gives it")
        return self._structs[name]

    def _member(self, told: dict[str, Any]) -> Any:
        made = self.type(told["type"])
        return made * told["count"] if "count" in told else made

    def callback(self, name: str) -> Any:
        if name not in self._callbacks:
            told = self._told["callbacks"][name]
            params = [self.type(param["type"]) for param in told["params"]]
            self._callbacks[name] = ctypes.CFUNCTYPE(self.type(told["returns"]), *params)
        return self._callbacks[name]

    def make(self, struct: str, **members: Any) -> Any:
        """A struct with its size and these members; None is left out, texts and paths are encoded."""
        made = self.struct(struct)()
        size = self._told["structs"][struct].get("size_member")
        if size is not None:
            setattr(made, size, ctypes.sizeof(made))
        types = dict(made._fields_)
        for name, value in members.items():
            if value is not None:
                setattr(made, name, _fitting(types[name], name, value))
        return made

    def handle(self, struct: str) -> Any:
        """Room for a handle that a function returns through its first argument."""
        return ctypes.POINTER(self.struct(struct))()

    def members(self, struct: Any, leave: str = "") -> dict[str, Any]:
        """The values of a struct as Python has them: texts decoded, arrays as lists."""
        return {name: plain(getattr(struct, name)) for name, *_ in struct._fields_ if name != leave}


def _fitting(kind: Any, name: str, value: Any) -> Any:
    """What ctypes would take as an address, or cut, is refused."""
    if kind is ctypes.c_char_p:
        if not isinstance(value, (str, bytes, os.PathLike)):
            raise TypeError(f"{name} is a text or a path, not {value!r}")
        return encoded(value)
    whole = isinstance(value, int) and not isinstance(value, bool) and kind is not ctypes.c_void_p
    if whole and kind(value).value != value:
        raise ValueError(f"{name} {value} is out of range")
    return value


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, ctypes.Array):
        return [plain(element) for element in value]
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return value
