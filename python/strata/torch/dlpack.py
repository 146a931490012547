"""Tensors over memory at an address, of the host or of a GPU, by DLPack."""

from __future__ import annotations

import atexit
import ctypes

import torch

_CPU, _CUDA = 1, 2  # DLDeviceType
_FLOAT, _BFLOAT = 2, 4  # DLDataTypeCode
_CODES = {torch.float32: _FLOAT, torch.float16: _FLOAT, torch.float64: _FLOAT, torch.bfloat16: _BFLOAT}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device", _Device), ("rank", ctypes.c_int32), ("type", _Type)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("at", ctypes.c_uint64)),
        *(("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
    )


_living: dict[int, tuple[_Managed, object]] = {}  # by address: what PyTorch holds, and whose memory that is


def _end(managed: int) -> None:
    _living.pop(managed, None)


_ended = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_end)


def _exit() -> None:
    """Tensors that outlive the interpreter call nothing of it."""
    for managed, _ in _living.values():
        managed.deleter = None


atexit.register(_exit)

_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def tensor_at(address: int, shape: torch.Size, dtype: torch.dtype, owner: object, device: torch.device) -> torch.Tensor:
    """A tensor with a storage of its own over memory that `owner` keeps for as long as the storage lives."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    made = _Managed(
        address,
        _Device(_CPU if device.type == "cpu" else _CUDA, device.index or 0),
        len(shape),
        _Type(_CODES[dtype], 8 * dtype.itemsize, 1),
        sizes,
    )
    made.deleter = ctypes.cast(_ended, ctypes.c_void_p)
    _living[ctypes.addressof(made)] = made, (owner, sizes)
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(_capsule(ctypes.addressof(made), b"dltensor", None))
    return tensor
