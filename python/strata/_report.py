"""Answers: dicts and lists of dicts that show themselves, as text and in a notebook."""

from __future__ import annotations

import ctypes
import html
from collections.abc import Callable, Iterable
from typing import Any

from ._library import Library
from ._said import in_python


class Report(dict[str, Any]):
    """The keys that the program prints with --json (docs/json.md), and the same as text for people."""

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


class Table(list[dict[str, Any]]):
    """Rows of one kind, such as the steps of a run: Table(strata.train(...))."""

    def __init__(self, rows: Iterable[dict[str, Any]] = (), columns: Iterable[str] | None = None) -> None:
        super().__init__(rows)
        self._columns = None if columns is None else list(columns)

    @property
    def columns(self) -> list[str]:
        """Those that were asked for; else all keys whose values are no dicts."""
        if self._columns is not None:
            return self._columns
        return list(dict.fromkeys(key for row in self for key, value in row.items() if not isinstance(value, dict)))

    def __getitem__(self, index: Any) -> Any:
        """A slice is a table, too."""
        made = super().__getitem__(index)
        return Table(made, self._columns) if isinstance(index, slice) else made

    def column(self, name: str) -> list[Any]:
        return [row.get(name) for row in self]

    def _cells(self) -> list[list[str]]:
        return [[_cell(row.get(column)) for column in self.columns] for row in self]

    def __str__(self) -> str:
        rows = [self.columns, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        def row(tag: str, cells: list[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        return "<table>" + row("th", self.columns) + "".join(row("td", cells) for cells in self._cells()) + "</table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def printed(write: Callable[[ctypes.c_void_p], None]) -> str:
    """What one of the library's functions prints to a FILE."""
    c = ctypes.CDLL(None, use_errno=True)
    c.open_memstream.restype = ctypes.c_void_p
    c.fclose.argtypes = [ctypes.c_void_p]
    c.free.argtypes = [ctypes.c_void_p]
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    file = c.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not file:
        raise OSError(ctypes.get_errno(), "no memory for a report")
    try:
        write(file)
    finally:
        c.fclose(file)
        result = ctypes.string_at(text, size.value) if text else b""
        c.free(text)
    return in_python(result.decode("utf-8", "replace"))


def got(read: Callable[..., None], *arguments: Any) -> str:
    """A borrowed text that one of the library's functions returns through its last argument."""
    text = ctypes.c_char_p()
    read(*arguments, ctypes.byref(text))
    return (text.value or b"").decode("utf-8", "replace")


def abi() -> Any:
    return Library.get().abi
