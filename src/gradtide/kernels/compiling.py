"""Compiles a function by numba into machine code that does without numba: it asks libc and Python alone for what it
calls.

numba's own cache keeps code that only numba can load, and a process takes half a second to import what that needs.
"""

import warnings
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import njit, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaIRAssumptionWarning

__all__ = ["compile_block", "compile_kernel"]

_WORD, _STATUS, _POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def compile_kernel(function: Callable[..., Any], words: int, symbol: str) -> bytes:
    """An object file with a function of this name that Python calls (METH_FASTCALL): so many words in, a word out, and
    other threads run meanwhile."""
    code: bytes = _object_file(function, words, types.int64, symbol, _python_calls)
    return code


def compile_block(function: Callable[..., Any], words: int, symbol: str) -> bytes:
    """An object file with a function of this name that kernels call: so many words in, nothing out."""
    code: bytes = _object_file(function, words, types.void, symbol, _kernels_call)
    return code


@global_compiler_lock
def _object_file(function: Callable[..., Any], words: int, returned: Any, symbol: str, write_entry: Any) -> Any:
    signature = returned(*[types.int64] * words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaIRAssumptionWarning)
        dispatcher = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature.args]
    context = compiled.target_context
    library = context.codegen().create_library(symbol)
    library.enable_object_caching()
    module = library.create_ir_module(symbol)
    write_entry(_Entry(module, symbol, context, compiled))
    library.add_ir_module(module)
    library.add_linking_library(compiled.library)
    library.finalize()
    return library.serialize_using_object_code()[2][0]


class _Entry:
    """The function around what numba compiled, as it is written."""

    def __init__(self, module: Any, symbol: str, context: Any, compiled: Any) -> None:
        self.module, self.symbol, self._context, self._compiled = module, symbol, context, compiled
        self.words = len(compiled.signature.args)

    def begin(self, kind: ir.FunctionType) -> tuple[Any, ir.IRBuilder]:
        function = ir.Function(self.module, kind, self.symbol)
        return function, ir.IRBuilder(function.append_basic_block())

    def call(self, builder: ir.IRBuilder, words: list[Any]) -> tuple[Any, Any]:
        """Whether it failed, and what it returned."""
        native = self._context.declare_function(self.module, self._compiled.fndesc)
        signature = self._compiled.signature
        status, result = self._context.call_conv.call_function(
            builder, native, signature.return_type, signature.args, words
        )
        return status.is_error, result

    def outside(self, name: str, returned: Any, *arguments: Any) -> Any:
        return ir.Function(self.module, ir.FunctionType(returned, arguments), name)


def _kernels_call(entry: _Entry) -> None:
    function, builder = entry.begin(ir.FunctionType(ir.VoidType(), [_WORD] * entry.words))
    entry.call(builder, list(function.args))
    builder.ret_void()


def _python_calls(entry: _Entry) -> None:
    """static PyObject *kernel(PyObject *self, PyObject **arguments, Py_ssize_t count)"""
    number = entry.outside("PyLong_AsLongLong", _WORD, _POINTER)
    error = entry.outside("PyErr_Occurred", _POINTER)
    refuse = entry.outside("PyErr_BadInternalCall", ir.VoidType())
    unlock = entry.outside("PyEval_SaveThread", _POINTER)
    lock = entry.outside("PyEval_RestoreThread", ir.VoidType(), _POINTER)
    answer = entry.outside("PyLong_FromLongLong", _POINTER, _WORD)

    function, builder = entry.begin(ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _WORD]))
    _, arguments, count = function.args
    nothing = ir.Constant(_POINTER, None)
    with builder.if_then(builder.icmp_signed("!=", count, ir.Constant(_WORD, entry.words)), likely=False):
        builder.call(refuse, [])  # who calls it is one of us
        builder.ret(nothing)
    given = [builder.load(builder.gep(arguments, [ir.Constant(_WORD, index)])) for index in range(entry.words)]
    words = [builder.call(number, [value]) for value in given]
    with builder.if_then(builder.icmp_unsigned("!=", builder.call(error, []), nothing), likely=False):
        builder.ret(nothing)
    thread = builder.call(unlock, [])
    failed, result = entry.call(builder, words)
    builder.call(lock, [thread])
    with builder.if_then(failed, likely=False):
        builder.call(refuse, [])  # kernels answer by codes and raise nothing
        builder.ret(nothing)
    builder.ret(builder.call(answer, [result]))
