"""What is in the compiled module: code for a richer processor stands in its level's own functions, and nowhere else.

An instruction that the processor lacks kills the process. Functions of the standard library and of nanobind are
compiled in every file that uses them, and the linker keeps one copy for all: it must be one that runs everywhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from sparsefleet.kernels import _native

LEVEL = re.compile(r"\bsparsefleet::(baseline|avx2|avx512|avx512bf16|amx)::")
FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
REFERENCE = re.compile(r"\b([0-9a-f]+) <(.+)>$")

# By what an instruction needs. (tzcnt runs as bsf on processors that do not know it; compilers rely on that.)
BMI = "andn|bextr|blsi|blsmsk|blsr|bzhi|lzcnt|movbe|mulx|pdep|pext|rorx|sarx|shlx|shrx"
NEEDS = {
    "amx": re.compile(r"%tmm\d|^(ldtilecfg|sttilecfg|tilerelease)\b"),
    "bf16": re.compile(r"^v(dpbf16ps|cvtne2?ps2bf16)"),
    "avx512": re.compile(r"%zmm\d|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b"),
    "avx2": re.compile(rf"%ymm\d|^v|^({BMI})[bwlq]?\b"),
}
HAS = {
    "baseline": set(),
    "avx2": {"avx2"},
    "avx512": {"avx2", "avx512"},
    "avx512bf16": {"avx2", "avx512", "bf16"},
    "amx": {"avx2", "avx512", "bf16", "amx"},
}


class Function:
    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address, name
        self.needs: dict[str, str] = {}
        """What it takes to run it, and an instruction that shows it."""
        self.refers: set[str] = set()
        """Addresses and names that it calls, jumps to or takes the address of."""

    @property
    def level(self) -> str | None:
        """The level that it is of. A template over a level's types, such as a binding of its lambda, is its own."""
        found = LEVEL.search(self.name)
        if found:
            return found[1]
        return "baseline" if self.name.startswith(("sparsefleet::", "PyInit")) else None

    @property
    def shared(self) -> bool:
        """A template of the standard library over common types: its one copy is of the poorest level that has one.

        Or a clone that the compiler made of an inline function: each file has its own, which nobody else can call.
        """
        return self.level is None and ("[clone " in self.name or bare(self.name).startswith("std::"))

    def too_much(self) -> list[str]:
        has = HAS[self.level or "baseline"]
        return [text for need, text in self.needs.items() if need not in has]


def bare(name: str) -> str:
    """The name of a function without the type that it returns, its arguments and those of its templates."""
    kept, depth = "", 0
    for character in name:
        depth += character in "<("
        kept += character if depth == 0 else ""
        depth -= character in ">)"
    return kept.split("[clone")[0].removesuffix(" const").strip().rpartition(" ")[2]


def disassembled(lines: Iterable[str]) -> Iterator[Function]:
    function = None
    for line in lines:
        if found := FUNCTION.match(line):
            if function is not None:
                yield function
            function = Function(found[1].lstrip("0"), found[2])
        elif function is not None and "\t" in line:
            text = line.split("\t", 1)[1].strip()
            for need, pattern in NEEDS.items():
                if need not in function.needs and pattern.search(text):
                    function.needs[need] = text
            if found := REFERENCE.search(text):
                function.refers |= {found[1], found[2].removesuffix("@plt")} if "@plt" in found[2] else {found[1]}
    if function is not None:
        yield function


@cache
def functions() -> list[Function]:
    if "native" in _native.built_levels():
        pytest.skip("NOT TESTED: the module was built for this machine only")
    if b"__asan_init" in Path(str(_native.__file__)).read_bytes():
        # Sanitizers change what is inlined, and with it which copies are left for the linker to choose from.
        pytest.skip("NOT TESTED: the module was built with sanitizers, and runs on this machine only")
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("NOT TESTED: there is no objdump (it comes with binutils)")
    command = [objdump, "-d", "-C", "--no-show-raw-insn", _native.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = list(disassembled(process.stdout))
    assert process.returncode == 0
    if not any(LEVEL.search(function.name) for function in found):
        # A wheel's. What this finds is a matter of link order, which CMakeLists.txt gives to every compiler alike.
        pytest.skip("NOT TESTED: the module is stripped of its names")
    return found


def test_code_above_the_baseline_stands_in_its_levels_functions():
    wrong = [
        f"{function.name}: {', '.join(function.too_much())}"
        for function in functions()
        if function.too_much() and not function.shared
    ]
    assert not wrong, "\n".join(wrong)


def test_shared_functions_are_reached_only_from_levels_that_can_run_them():
    """A copy of `std::sort` with AVX-512 in it is fine as long as no poorer level calls it."""
    shared = {function.address: function for function in functions() if function.level is None}
    named = {function.name: function for function in shared.values()}

    def reached(function: Function) -> list[Function]:
        return [other for at in function.refers if (other := shared.get(at) or named.get(at))]

    needs = {address: set(function.needs) for address, function in shared.items()}
    grown = True
    while grown:  # what a function calls, it needs too
        before = sum(map(len, needs.values()))
        for address, function in shared.items():
            needs[address].update(*(needs[other.address] for other in reached(function)))
        grown = sum(map(len, needs.values())) > before
    wrong = [
        f"{function.name} reaches {other.name}, which needs {', '.join(sorted(needs[other.address]))}"
        for function in functions()
        if function.level is not None
        for other in reached(function)
        if not needs[other.address] <= HAS[function.level]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_level_that_was_built_is_seen():
    """Else the tests above would have looked at nothing."""
    assert {function.level for function in functions()} - {None} == set(_native.built_levels())


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("vaddps %xmm1,%xmm2,%xmm3", {"avx2"}),
        ("movups (%rax),%xmm1", set()),
        ("shlx   %rax,%rbx,%rcx", {"avx2"}),
        ("andnq %rax,%rbx,%rcx", {"avx2"}),
        ("tzcnt  %rax,%rbx", set()),
        ("shl    $0x3,%rax", set()),
        ("andnps %xmm0,%xmm1", set()),
        ("kmovd  %k1,%eax", {"avx512"}),
        ("vmovups %zmm0,(%rax)", {"avx2", "avx512"}),
        ("vaddps %ymm17,%ymm1,%ymm2", {"avx2", "avx512"}),
        ("tdpbf16ps %tmm2,%tmm1,%tmm0", {"amx"}),
    ],
)
def test_instructions_are_told_apart(text, needs):
    lines = ["0000000000001000 <std::f(int)>:\n", f"    1000:\t{text}\n"]
    (function,) = disassembled(lines)
    assert set(function.needs) == needs


@pytest.mark.parametrize(
    ("name", "level", "shared"),
    [
        ("PyInit__native", "baseline", False),
        ("sparsefleet::this_processor()", "baseline", False),
        ("nanobind::detail::nb_type_new(nanobind::detail::type_init_data const*)", None, False),
        ("sparsefleet::avx2::xxh64(char const*, unsigned long, unsigned long)", "avx2", False),
        ("nanobind::detail::func_create<sparsefleet::amx::bind_tower(nanobind::module_&)::{lambda()#1}>", "amx", False),
        ("std::vector<float, std::allocator<float> >::_M_default_append(unsigned long)", None, True),
        ("void std::__introsort_loop<unsigned long*, long>(unsigned long*)", None, True),
        ("std::_Node<int>* std::_Alloc<std::_Node<int> >::make<int const&>(int const&)", None, True),
        ("nanobind::list::append(std::vector<int> const&)", None, False),
        ("std::vector<int> nanobind::cast<std::vector<int> >(nanobind::handle)", None, False),
        ("nanobind::detail::list_caster<int>::from_python(nanobind::handle) [clone .isra.0]", None, True),
    ],
)
def test_functions_are_told_apart(name, level, shared):
    function = Function("1000", name)
    assert (function.level, function.shared) == (level, shared)
