import os
import re
import subprocess
import sys

import pytest
from numba import cfunc, njit, types

from gradtide.kernels import KERNELS, LINE_BYTES, Line, Op
from gradtide.kernels.arithmetic import write_block


def _ir(kernel):
    dispatcher = njit(nogil=True)(kernel.function)
    dispatcher.compile(kernel.signature.args)
    return dispatcher.inspect_llvm(kernel.signature.args)


@pytest.mark.parametrize("kernel", [KERNELS.STEP, KERNELS.ALL_REDUCE], ids=["step", "all_reduce"])
def test_counters_are_read_with_acquire_and_raised_with_release(kernel):
    text = _ir(kernel)
    assert re.search(r"load atomic i64, .* acquire", text)
    assert re.search(r"store atomic i64 .* release", text)
    assert "fence seq_cst" in text
    assert not re.search(r"(load|store) atomic .* (monotonic|unordered)", text)


def test_no_block_may_reorder_sums_and_each_of_its_loops_is_vectorised():
    text = cfunc(types.void(*[types.int64] * 6))(write_block(types.float32, Op.SUM)).inspect_llvm()
    loops = set(re.findall(r"^(vector\.body\S*):", text, re.MULTILINE))
    assert len(loops) == 4, loops
    assert re.search(r"fadd <\d+ x float>", text)
    assert not re.search(r"\bf(add|mul|sub|div) (fast|reassoc|nnan|contract)", text)


def test_the_ir_for_aarch64_uses_its_acquiring_and_releasing_instructions():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = re.sub(r'target (triple|datalayout) = ".*"\n', "", _ir(KERNELS.BEFORE_SLEEP))
    text = re.sub(r'"target-cpu"="[^"]*"|"target-features"="[^"]*"', "", text)
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_triple("aarch64-linux-gnu").create_target_machine()
    code = machine.emit_assembly(module)
    assert re.search(r"\bldar\b|\bldapr\b", code)
    assert re.search(r"\bstlr\b", code)
    assert "dmb\tish" in code


def _first_kernel(**environment):
    program = (
        "from gradtide.kernels import KERNELS\n"
        "import numpy as np\n"
        "line = np.zeros(16, np.int64)\n"
        "assert KERNELS.RAISE.entry(line.ctypes.data, 5) == 0 and line[0] == 5\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_a_cache_that_can_be_written_kernels_are_compiled_and_work():
    # What a missing home folder and a read-only installation amount to: nowhere to write.
    _first_kernel(NUMBA_CACHE_DIR="/proc/nowhere")


def test_a_damaged_cache_is_compiled_anew(tmp_path):
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(b"rubbish")
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path))


@pytest.mark.quick
def test_a_line_holds_a_counter_and_its_headers():
    assert Line.WORDS <= LINE_BYTES // 8
