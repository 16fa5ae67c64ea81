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
    words = (types.int64,) * kernel.words
    dispatcher.compile(words)
    return dispatcher.inspect_llvm(words)


@pytest.mark.parametrize("kernel", [KERNELS.STEP, KERNELS.ALL_REDUCE], ids=["step", "all_reduce"])
def test_counters_are_read_with_acquire_and_raised_with_release(kernel):
    text = _ir(kernel)
    assert re.search(r"load atomic i64, .* acquire", text)
    assert re.search(r"store atomic i64 .* release", text)
    assert "fence seq_cst" in text
    assert not re.search(r"(load|store) atomic .* (monotonic|unordered)", text)


def test_no_block_may_reorder_sums_and_each_of_its_loops_is_vectorised():
    text = cfunc(types.void(*[types.int64] * 6))(write_block("float32", Op.SUM)).inspect_llvm()
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


@pytest.mark.parametrize("damage", [lambda code: b"rubbish", lambda code: code[:-1] + bytes([code[-1] ^ 1])])
def test_a_damaged_cache_is_compiled_anew(tmp_path, damage):
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path))
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert kept
    for file, code in kept.items():
        file.write_bytes(damage(code))
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path))
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == kept


def test_code_that_was_compiled_for_another_processor_is_not_taken(tmp_path):
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path))
    before = {file for file in tmp_path.rglob("*") if file.is_file()}
    _first_kernel(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic")
    assert before < {file for file in tmp_path.rglob("*") if file.is_file()}


def test_a_group_that_finds_its_kernels_on_the_disk_loads_neither_numba_nor_the_planner(tmp_path):
    program = (
        "import gc, sys, torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gradtide', init_method='file://' + sys.argv[1], rank=0, world_size=1)\n"
        "assert gc.isenabled()\n"
        "dist.all_reduce(torch.ones(4))\n"
        "dist.destroy_process_group()\n"
        "print(*sys.modules)\n"
    )
    for file in ("compiled", "found"):
        done = subprocess.run([sys.executable, "-c", program, tmp_path / file], stdout=subprocess.PIPE, check=True)
    loaded = set(done.stdout.decode().split())
    assert "gradtide.kernels.machine_code" in loaded
    assert not loaded & {"numba", "scipy", "gradtide.schedule.plan", "gradtide.topology.files"}


def test_a_kernel_called_with_what_it_does_not_take_raises():
    raised = KERNELS.RAISE.entry
    with pytest.raises(SystemError):
        raised(1)
    with pytest.raises(TypeError):
        raised(1, "2")
    with pytest.raises(OverflowError):
        raised(1, 1 << 64)


@pytest.mark.quick
def test_a_line_holds_a_counter_and_its_headers():
    assert Line.WORDS <= LINE_BYTES // 8
