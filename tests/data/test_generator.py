"""Data generators, run as users run them: a script with lines on its standard input."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import xxhash

import sparsefleet
import sparsefleet.data.generator as dg
from sparsefleet.core.errors import ConfigError, DataError

SOURCE = str(Path(sparsefleet.__file__).parents[1])

# The example of the CTR tutorial; only its import line differs.
CRITEO_EXAMPLE = """
import sparsefleet.data.generator as dg

cont_min_ = [0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
cont_max_ = [20, 600, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50]
cont_diff_ = [20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50]
hash_dim_ = 1000001
continuous_range_ = range(1, 14)
categorical_range_ = range(14, 40)

class CriteoDataset(dg.MultiSlotDataGenerator):

    def generate_sample(self, line):

        def reader():
            features = line.rstrip('\\n').split('\\t')
            dense_feature = []
            sparse_feature = []
            for idx in continuous_range_:
                if features[idx] == "":
                    dense_feature.append(0.0)
                else:
                    dense_feature.append(
                        (float(features[idx]) - cont_min_[idx - 1]) /
                        cont_diff_[idx - 1])
            for idx in categorical_range_:
                sparse_feature.append(
                    [hash(str(idx) + features[idx]) % hash_dim_])
            label = [int(features[0])]
            process_line = dense_feature, sparse_feature, label
            feature_name = ["dense_feature"]
            for idx in categorical_range_:
                feature_name.append("C" + str(idx - 13))
            feature_name.append("label")

            yield zip(feature_name, [dense_feature] + sparse_feature + [label])

        return reader

d = CriteoDataset()
d.run_from_stdin()
"""
STABLE_EXAMPLE = CRITEO_EXAMPLE.replace(
    "import sparsefleet.data.generator as dg\n",
    "import sparsefleet.data.generator as dg\nfrom sparsefleet.data.generator import stable_hash as hash\n",
)
CATEGORIES = ["68fd1e64", "80e26c9b", "", *(f"{i * 7919:08x}" for i in range(23))]
CRITEO_LINE = "0 1 1 5 0 1382 4 15 2 181 1 2  2 ".replace(" ", "\t") + "\t".join(CATEGORIES)
DENSE = "0.05 0.00663349917081 0.05 0.0 0.02159375 0.008 0.15 0.04 0.362 0.1 0.2 0.0 0.04"


def run(script: str, lines: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": SOURCE, **env},
    )


def generator(body: str, base: str = "MultiSlotDataGenerator") -> str:
    """A script whose generate_sample has the given body."""
    return (
        "import sparsefleet.data.generator as dg\n"
        f"class G(dg.{base}):\n    def generate_sample(self, line):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
        + "\nG().run_from_stdin()\n"
    )


def test_the_criteo_example_gives_the_values_of_the_tutorial() -> None:
    done = run(CRITEO_EXAMPLE, f"{CRITEO_LINE}\n" * 3, PYTHONHASHSEED="0")  # it calls Python's own hash
    assert (done.returncode, done.stderr) == (0, "")
    (first, *_) = rows = done.stdout.splitlines()
    assert len(rows) == 3
    fields = first.split(" ")
    assert fields[0] == "13"
    dense = [float(value) for value in fields[1:14]]
    assert dense == pytest.approx([float(value) for value in DENSE.split()], abs=1e-12)
    assert fields[14::2] == ["1"] * 27
    assert len(fields) == 14 + 27 * 2
    assert fields[-1] == "0"


def test_with_the_stable_hash_every_process_gives_the_same_keys() -> None:
    one = run(STABLE_EXAMPLE, CRITEO_LINE, PYTHONHASHSEED="1")
    other = run(STABLE_EXAMPLE, CRITEO_LINE, PYTHONHASHSEED="2")
    assert one.returncode == 0
    assert one.stdout == other.stdout
    keys = [int(key) for key in one.stdout.split()[15:-2:2]]
    assert keys == [
        xxhash.xxh64_intdigest(f"{14 + i}{category}".encode()) % 1000001 for i, category in enumerate(CATEGORIES)
    ]


def test_stable_hash_is_xxh64() -> None:
    assert dg.stable_hash("") == 0xEF46DB3751D8E999
    assert dg.stable_hash("abc") == 0x44BC2CF5AD770999
    source = random.Random(7)
    for length in [*range(70), 255, 1000]:
        data = source.randbytes(length)
        seed = source.getrandbits(64)
        assert dg.stable_hash(data) == xxhash.xxh64_intdigest(data)
        assert dg.stable_hash(data, seed) == xxhash.xxh64_intdigest(data, seed)
    assert dg.stable_hash("größe") == xxhash.xxh64_intdigest("größe".encode())
    assert dg.stable_hash(b"\xff\xfe".decode("utf-8", "surrogateescape")) == xxhash.xxh64_intdigest(b"\xff\xfe")
    with pytest.raises(DataError, match=r"stable_hash\('\\ud800'\): not valid Unicode"):
        dg.stable_hash("\ud800")


def test_importing_a_generator_loads_nothing_heavy() -> None:
    heavy = ["numpy", "torch", "pyarrow", "sparsefleet.core.batch", "typing", "dataclasses", "re"]
    done = run(
        # -S would hide what site hooks of an environment load; compare with what was there before.
        "import sys; before = set(sys.modules); import sparsefleet.data.generator; "
        f"print([m for m in {heavy!r} if m in sys.modules and m not in before])"
    )
    assert done.stdout == "[]\n"


def test_the_package_offers_the_generators_without_loading_numpy() -> None:
    done = run(
        "import sys, sparsefleet.data as d; g = d.MultiSlotDataGenerator\nprint('numpy' in sys.modules, g.__name__)"
    )
    assert done.stdout == "False MultiSlotDataGenerator\n"


def test_floats_are_printed_so_that_they_read_back_the_same() -> None:
    rows = dg.MultiSlotDataGenerator()._gen_str([("x", [0.1 + 0.2, 1e-12, 5, 1 / 3]), ("label", [1])])
    assert rows == "4 0.30000000000000004 1e-12 5 0.3333333333333333 1 1\n"
    assert [float(text) for text in rows.split()[1:5]] == [0.1 + 0.2, 1e-12, 5, 1 / 3]


def test_numbers_of_numpy_print_like_those_of_python() -> None:
    np = pytest.importorskip("numpy")
    values = [np.float64(0.5), np.float32(0.25), np.int64(3), np.uint64(2**64 - 1), True]
    assert dg.MultiSlotDataGenerator()._gen_str([("x", values)]) == "5 0.5 0.25 3 18446744073709551615 1\n"


def test_strings_pass_as_they_are() -> None:
    done = run(
        generator(
            "yield [('words', line.split()), ('label', ['1'])]",
            base="MultiSlotStringDataGenerator",
        ),
        "1926 08 17\n5\n",
    )
    assert done.stdout == "3 1926 08 17 1 1\n1 5 1 1\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    "body",
    [
        "return [[('x', [int(line)])]]",
        "yield [('x', [int(line)])]",
        "return lambda: iter([(('x', [int(line)]),)])",
        "return lambda: [None, {'x': [int(line)]}.items(), None]",
    ],
)
def test_generate_sample_may_return_a_function_or_an_iterable(body: str) -> None:
    assert run(generator(body), "3\n4\n").stdout == "1 3\n1 4\n"


def test_a_line_may_give_many_samples_or_none() -> None:
    assert run(generator("for n in range(int(line)): yield [('x', [n])]"), "2\n0\n1\n").stdout == "1 0\n1 1\n1 0\n"


def test_generate_batch_sees_as_many_samples_as_set_batch_says() -> None:
    script = """
    import sparsefleet.data.generator as dg
    class G(dg.MultiSlotDataGenerator):
        def generate_sample(self, line):
            yield [("x", [int(line)])]
        def generate_batch(self, samples):
            def reader():
                for sample in samples:
                    yield sample + [("of", [len(samples)])]
            return reader
    g = G()
    g.set_batch(2)
    g.run_from_stdin()
    """
    assert run(script, "1\n2\n3\n").stdout == "1 1 1 2\n1 2 1 2\n1 3 1 1\n"


def test_run_from_memory_asks_for_the_samples_of_no_line() -> None:
    script = """
    import sparsefleet.data.generator as dg
    class G(dg.MultiSlotDataGenerator):
        def generate_sample(self, line):
            assert line is None
            return lambda: ((("words", [1, 2, 3, 4]), ("label", [0])) for _ in range(100))
    G().run_from_memory()
    """
    assert run(script).stdout == "4 1 2 3 4 1 0\n" * 100


BAD = {
    "other slots": (
        "yield [('x', [1])] if line != 'c\\n' else [('x', [1]), ('y', [2])]",
        "2 slots where the first",
    ),
    "other order": (
        "yield [('x', [1]), ('y', [2])] if line != 'c\\n' else [('y', [2]), ('x', [1])]",
        "slot 'y' at place 1 where the first sample had 'x'",
    ),
    "empty slot": ("yield [('x', [1] if line != 'c\\n' else [])]", "slot 'x' is empty"),
    "text": (
        "yield [('x', [1] if line != 'c\\n' else ['one'])]",
        "'one' of type str; values must be int or float",
    ),
    "not a list": ("yield [('x', [1] if line != 'c\\n' else 5)]", "slot 'x' is 5, not a list of values"),
    "nan": ("yield [('x', [1.0] if line != 'c\\n' else [float('nan')])]", "slot 'x' has nan"),
    "not pairs": ("yield [('x', [1])] if line != 'c\\n' else [1, 2]", "is not a sample"),
    "no iterable": ("return [[('x', [1])]] if line != 'c\\n' else 7", "generate_sample gave 7"),
    "user's error": ("yield [('x', [1 // (line != 'c\\n')])]", "ZeroDivisionError"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_sample_ends_with_its_line_and_status_1(body: str, reason: str) -> None:
    done = run(generator(body), "a\nb\nc\nd\n")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-2:]
    assert last[0].startswith("-c: line 3: ")
    assert reason in last[0]
    assert last[1] == "  'c\\n'"
    assert ("Traceback" in done.stderr) == (reason == "ZeroDivisionError")


def test_the_good_rows_before_a_bad_one_are_written() -> None:
    done = run(generator("yield [('x', [int(line)])]"), "1\n2\nx\n")
    assert done.returncode == 1
    assert "line 3: ValueError" in done.stderr
    done = run(generator("yield [('x', [int(line)] if int(line) else [])]"), "1\n2\n0\n")
    assert done.stdout == "1 1\n1 2\n"


def test_a_bad_sample_of_a_users_batch_names_the_lines_of_the_batch() -> None:
    script = """
    import sparsefleet.data.generator as dg
    class G(dg.MultiSlotDataGenerator):
        def generate_sample(self, line):
            yield [("x", [int(line)])]
        def generate_batch(self, samples):
            return [[("x", [])] if ("x", [4]) in s else s for s in samples]
    g = G()
    g.set_batch(2)
    g.run_from_stdin()
    """
    done = run(script, "1\n2\n3\n4\n")
    assert "lines 3 to 4: slot 'x' is empty" in done.stderr


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1], "1 of type int; MultiSlotStringDataGenerator takes text"),
        (["a b"], "'a b'; a value"),
        ([""], "''; a value"),
    ],
)
def test_strings_are_checked_too(values: list[object], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        dg.MultiSlotStringDataGenerator()._gen_str([("x", values)])


def test_a_slot_that_comes_twice_or_has_no_name_is_refused() -> None:
    with pytest.raises(DataError, match="comes twice"):
        dg.MultiSlotDataGenerator()._gen_str([("x", [1]), ("x", [1])])
    with pytest.raises(DataError, match="slot name 5 is not text"):
        dg.MultiSlotDataGenerator()._gen_str([(5, [1])])  # type: ignore[list-item]
    with pytest.raises(DataError, match="no slots"):
        dg.MultiSlotDataGenerator()._gen_str([])


def test_a_forgotten_generate_sample_is_named() -> None:
    done = run("import sparsefleet.data.generator as dg\ndg.MultiSlotDataGenerator().run_from_stdin()", "x\n")
    assert done.returncode == 1
    assert "must define generate_sample" in done.stderr


def test_set_batch_refuses_nonsense() -> None:
    with pytest.raises(ConfigError, match=r"set_batch\(0\)"):
        dg.MultiSlotDataGenerator().set_batch(0)


def test_bytes_that_are_not_utf8_pass_through() -> None:
    script = generator("yield [('x', [line.rstrip()])]", base="MultiSlotStringDataGenerator")
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=b"\xff\xfe\n",
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert (done.returncode, done.stdout) == (0, b"1 \xff\xfe\n")


def test_a_closed_output_ends_it_quietly() -> None:
    script = generator("yield [('x', list(range(1000)))]")
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdout.close()
        process.stdin.write(b"x\n" * 2000)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
