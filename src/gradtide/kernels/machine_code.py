"""Machine code on the disk: put there once it is compiled, and loaded by LLVM alone, which takes some milliseconds.

An entry is named after a digest of whatever it is made of: the sources of all kernels, the compiler, and what the
processor can do. It begins with a digest of itself. Two processes may write one at once: the last one stays, and both
are the same.
"""

import ctypes
import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from gradtide.environment import read_environment

__all__ = ["as_callable", "load_code"]

_DIGEST_BYTES = 16
_METH_FASTCALL = 0x80
_SOURCES = Path(__file__).parent


def load_code(symbol: str, compile_it: Callable[[], bytes]) -> int:
    """The address of the function of this name. A cache that is missing, read-only, full or damaged costs the seconds
    of a compilation, never the run."""
    name = f"{symbol}-{_digest()}.code"
    code = next(_read(name), None)
    if code is None:
        code = compile_it()
        _write(name, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _processor().create_target_machine(jit=True))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = int(engine.get_function_address(symbol))
    assert address, f"no {symbol} in its machine code"
    engine.detach()  # it lives as long as the process: threads may be in it to the very end
    return address


def as_callable(name: str, address: int) -> Any:
    """What Python calls at this address: machine code for METH_FASTCALL."""
    method = _Method(name.encode(), address, _METH_FASTCALL, None)
    _methods.append(method)  # Python keeps its address
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return make(ctypes.addressof(method), None, None)


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: list[_Method] = []


@cache
def _processor() -> Any:
    with suppress(RuntimeError):  # newer ones do it by themselves, and raise
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


@cache
def _digest() -> str:
    around = read_environment()
    digest = hashlib.blake2b(digest_size=8)
    for file in (*sorted(_SOURCES.glob("*.py")), _SOURCES.parent / "even_share.py"):
        digest.update(file.read_bytes())
    made_by = [version("numba"), version("llvmlite"), *around.compiling]
    made_for = [llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    digest.update("\n".join([*made_by, *made_for]).encode())
    return digest.hexdigest()


def _folders() -> Iterator[Path]:
    """Where numba keeps its own: a folder that the user has named; else beside the sources, or in the user's cache."""
    around = read_environment()
    if around.compiled_dir is not None:
        yield around.compiled_dir / "gradtide"
    else:
        yield _SOURCES / "__pycache__"
        yield around.cache_dir / "kernels"


def _read(name: str) -> Iterator[bytes]:
    for folder in _folders():
        with suppress(OSError):
            content = (folder / name).read_bytes()
            code = content[_DIGEST_BYTES:]
            if content[:_DIGEST_BYTES] == _sealed(code):
                yield code


def _write(name: str, code: bytes) -> None:
    for folder in _folders():
        temporary = folder / f"{name}.{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(_sealed(code) + code)
            temporary.replace(folder / name)
            return
        except OSError:  # it is read-only, or full when half of it is written
            with suppress(OSError):
                temporary.unlink()


def _sealed(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()
