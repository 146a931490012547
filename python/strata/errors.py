"""What the library reports, as exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Error(Exception):
    """A call of the library has failed.

    status     name of the result, such as "E_NOFIT" (include/strata/status.h)
    exit_code  with which the program `strata` would have ended
    key        what it is about: a key of the configuration ("strata.host_memory"), or a member of the library's options
               ("model.seq_len" is the argument seq_len); "" if not known
    cause      the sentence: what is wrong, with file, value and limit
    detail     further causes, one a line; "" if there are none
    remedy     what would help; "" if nothing is known
    """

    def __init__(
        self, status: str, cause: str, *, exit_code: int = 1, key: str = "", detail: str = "", remedy: str = ""
    ) -> None:
        super().__init__(status, cause)
        self.status = status
        self.exit_code = exit_code
        self.key = key
        self.cause = cause
        self.detail = detail
        self.remedy = remedy

    def __str__(self) -> str:
        sentence = f"{self.cause}: {self.remedy}" if self.remedy else self.cause
        return "\n".join(filter(None, (sentence, self.detail)))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status, self.cause), self.__dict__)


@contextmanager
def reading(path: object, remedy: str = "take another checkpoint") -> Iterator[None]:
    """Whatever goes wrong with a checkpoint's file that is read within it becomes an Error, and names the file.

    E_IO where the system refuses it; E_CORRUPT where it is missing, cut, or has what it should not have.
    """
    try:
        yield
    except (Error, MemoryError):
        raise
    except FileNotFoundError as error:
        raise Error("E_CORRUPT", f"{path} is missing", exit_code=4, remedy=remedy) from error
    except OSError as error:
        raise Error("E_IO", f"{path} cannot be read: {error.strerror or error}", exit_code=4) from error
    except Exception as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0][:200]
        raise Error("E_CORRUPT", f"{path} is damaged ({told or type(error).__name__})", exit_code=4, remedy=remedy) from error
