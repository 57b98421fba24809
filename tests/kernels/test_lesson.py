"""The lesson of notebooks/07_read_the_kernel: sources that cannot drift, what the tracer saw, and checks that catch.

These run where the notebook runs, in an ordinary process; the kernels are interpreted in the lesson's own.
"""

import ast
import html
import json
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab.race import reference  # noqa: E402
from attnlab_kernels.launch import launch  # noqa: E402
from attnlab_kernels.testing import aot, lesson, lesson_solutions  # noqa: E402

ROOT = Path(__file__).parents[2]
NOTEBOOK = (ROOT / "notebooks" / "07_read_the_kernel.py").read_text(encoding="utf-8")
KERNELS = {"bounds": "sum_chunks", "order": "add_up", "traffic": "write_buckets"}
SEEDS = range(5)


def given(exercise: str) -> str:
    """The kernel as it stands in the notebook."""
    (node,) = (node for node in ast.parse(NOTEBOOK).body if getattr(node, "name", "") == KERNELS[exercise])
    return "\n".join(["@triton.jit", *NOTEBOOK.splitlines()[node.lineno - 1 : node.end_lineno]])


def changed(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, old
    return source.replace(old, new)


def solution(exercise: str) -> str:
    file = Path(lesson_solutions.__file__).read_text(encoding="utf-8")
    (node,) = (node for node in ast.parse(file).body if getattr(node, "name", "") == KERNELS[exercise])
    return "\n".join(["@triton.jit", *file.splitlines()[node.lineno - 1 : node.end_lineno]])


def refused(exercise: str, source: str, *words: str, seed: int = 0, **options) -> None:
    verdict = lesson.check(exercise, source, seed=seed, **options)
    assert verdict.passed is False
    for word in words:
        assert word in str(verdict)


# -- the exercises ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", KERNELS)
def test_the_solution_passes(exercise, seed):
    verdict = lesson.check(exercise, lesson_solutions.SOLUTIONS[exercise], seed=seed)
    assert verdict.passed, verdict


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("exercise", "words"),
    [
        ("bounds", ("store out of bounds", "at content[", "race at content[")),
        ("order", ("program (0, 0, 0)", "race at content[")),
        ("traffic", ("right, but it asks for",)),
    ],
)
def test_the_kernel_of_the_notebook_fails_for_the_reason_that_the_notebook_gives(exercise, words, seed):
    refused(exercise, given(exercise), *words, seed=seed)


def test_the_given_kernel_asks_for_exactly_what_the_check_calls_its_traffic():
    (said,) = lesson.check("traffic", given("traffic")).says
    asked, called = re.findall(r"asks for ([\d,]+)", said)
    assert asked == called


@pytest.mark.parametrize(
    ("exercise", "old", "new", "words"),
    [
        ("bounds", "(o_t < T)[:, None]", "(o_t < T - 1)[:, None]", ("content[", "wanted", "numbers are wrong")),
        ("bounds", "mask=o_v < V)", "mask=o_v < V - 1)", ("is NaN, as before the kernel", "wanted")),
        ("bounds", "(o_t < T)[:, None]", "(o_t >= 0)[:, None]", ("load out of bounds", "at v[")),
        ("order", "for t in range(0, T, BT):", "for t in range(0, T - BT, BT):", ("wanted",)),
        ("traffic", "b_content)\n    tl.store", "b_content * 0.99)\n    tl.store", ("wanted",)),
    ],
)
def test_a_solution_that_is_spoiled_is_refused_with_the_first_thing_that_is_wrong(exercise, old, new, words):
    refused(exercise, changed(solution(exercise), old, new), *words)


def test_atomics_are_not_deterministic_enough():
    store = "tl.store(content + o_v, tl.load(content + o_v) + tl.sum(b_v, 0))"
    source = changed(given("order"), store, "tl.atomic_add(content + o_v, tl.sum(b_v, 0))")
    refused("order", source, "atomics add in the order")


def test_one_program_that_does_all_the_work_is_told_to_share_it():
    loop = "for t in range(i * BT, T, PROGRAMS * BT):"
    source = changed(given("order"), loop, "for t in range(0, T * (i == 0), BT):")
    refused("order", source, "only 1 of 4 programs")


SOME_BUCKETS = """
@triton.jit
def some_buckets(phi, v, content, T, R: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr):
    i_c = tl.program_id(0)
    o_r, o_v = tl.arange(0, SOME), tl.arange(0, V)
    for r in range(0, R, SOME):
        b_sum = tl.zeros([SOME, V], tl.float32)
        for t in range(i_c * CHUNK, (i_c + 1) * CHUNK, BT):
            live = (t + tl.arange(0, BT) < T)[:, None]
            o_t = (t + tl.arange(0, BT))[:, None]
            b_phi = tl.load(phi + o_t * R + r + o_r[None, :], mask=live, other=0.0)
            b_v = tl.load(v + o_t * V + o_v[None, :], mask=live, other=0.0)
            b_sum += tl.sum(b_phi[:, :, None] * b_v[:, None, :], 0)
        tl.store(content + (i_c * R + r + o_r[:, None]) * V + o_v[None, :], b_sum)
"""


def test_half_of_the_bytes_is_asked_for_and_not_the_best():
    refused("traffic", SOME_BUCKETS.replace("SOME", "1"), "right, but")
    verdict = lesson.check("traffic", SOME_BUCKETS.replace("SOME", "4"))
    assert verdict.passed, verdict
    share, times = map(float, re.findall(r"\d\.\d\d", str(verdict)))
    assert 0.2 < share < 0.5
    assert times > 1.5
    assert "1.00 times those of its inputs and outputs" in str(lesson.check("traffic", solution("traffic")))


# -- whatever a reader may write --------------------------------------------------------------------------------------


def test_an_error_is_said_in_one_sentence_with_its_line():
    source = changed(given("bounds"), "b_sum += tl.sum(b_v, 0)", "b_sum += tl.sum(b_w, 0)")
    refused("bounds", source, "b_w", "at: b_sum += tl.sum(b_w, 0)")


def test_other_arguments_than_the_given_ones_are_refused():
    refused("bounds", changed(given("bounds"), "BV: tl.constexpr", "WIDTH: tl.constexpr"), "Error")


def test_a_function_that_is_no_kernel_is_refused():
    refused("bounds", given("bounds").replace("@triton.jit\n", ""), "@triton.jit stands above its def")


def test_a_loop_that_never_ends_is_ended_and_the_next_check_runs():
    source = changed(given("order"), "i = tl.program_id(0)", "i = tl.program_id(0)\n    while i >= 0:\n        i += 0")
    refused("order", source, "no answer within 3 s", limit_s=3)
    assert lesson.check("order", lesson_solutions.add_up).passed


def test_a_kernel_that_ends_its_process_is_reported_and_the_next_check_runs():
    source = changed(given("order"), "i = tl.program_id(0)", "i = tl.program_id(0)\n    __import__('os')._exit(7)")
    refused("order", source, "ended with status 7")
    assert lesson.check("order", lesson_solutions.add_up).passed


def test_what_a_kernel_prints_is_shown():
    source = changed(solution("order"), "i = tl.program_id(0)", "i = tl.program_id(0)\n    print('here')")
    verdict = lesson.check("order", source)
    assert verdict.passed
    assert "The kernel printed:\nhere" in str(verdict)


def test_every_check_draws_new_sizes():
    said = {lesson.check("bounds", given("bounds")).says for _ in range(5)}
    assert len(said) > 1


def test_an_exercise_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'bounds', 'order' or 'traffic', got 'speed'"):
        lesson.check("speed", lesson_solutions.add_up)


@pytest.mark.aot
@pytest.mark.parametrize("exercise", KERNELS)
def test_the_solutions_are_kernels_that_compile(exercise):
    """The interpreter takes more Python than the compiler."""
    constants = {
        "bounds": {"V": 27, "CHUNK": 16, "BT": 8, "BV": 32},
        "order": {"V": 64, "BT": 8, "PROGRAMS": 4},
        "traffic": {"R": 16, "V": 32, "CHUNK": 32, "BT": 16},
    }[exercise]
    tensors = [torch.empty(1024, device="meta") for _ in range(3 if exercise == "traffic" else 2)]
    kernel = lesson_solutions.SOLUTIONS[exercise]
    (case,) = aot.cases(exercise, lambda: launch(kernel, (4,), *tensors, 64, **constants))
    assert aot.compile_case(case, "sm_90").spill_bytes == 0


# -- what the tracer saw ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "chunk", "tile"), [(96, 32, 16), (96, 32, 32), (256, 16, 16), (64, 64, 16)])
def test_traced_bytes_are_the_predicted_ones(tokens, chunk, tile, causal):
    sizes = {"tokens": tokens, "chunk": chunk, "tile": tile, "causal": causal}
    assert lesson.record(**sizes).requested == lesson.predicted(**sizes)


@pytest.mark.parametrize("causal", [False, True])
def test_every_byte_stands_under_a_name_and_what_has_none_is_little(causal):
    record = lesson.record(causal=causal)
    memory = record.memory()
    assert sum(row["requested"] for row in memory.values()) == record.requested
    assert memory["other"]["requested"] < 0.01 * record.requested
    touched = Counter()
    for launch_ in record.launches:
        for where, _, _, _, size in launch_["touched"]:
            touched[where] += size
    assert touched == {name: row["requested"] for name, row in memory.items()}


@pytest.mark.parametrize("causal", [False, True])
def test_each_tile_of_the_output_is_stored_by_the_program_of_its_chunk(causal):
    record = lesson.record(tokens=96, chunk=32, causal=causal)
    stored = {
        (place, program)
        for launch_ in record.launches
        for where, place, kind, program, _ in launch_["touched"]
        if (where, kind) == ("out", "store")
    }
    assert stored == {(tile, tile // 2) for tile in range(6)}


@pytest.mark.parametrize("causal", [False, True])
def test_the_picture_holds_every_byte_but_those_without_a_name(causal):
    record = lesson.record(causal=causal)
    (heatmap,) = lesson.who_touches_what(record)["data"]
    drawn = sum(size or 0 for row in heatmap["z"] for size in row)
    assert drawn == record.requested - record.memory()["other"]["requested"]
    assert {letter for row in heatmap["text"] for letter in row} == ({"", "r", "w", "rw"} if causal else {"", "r", "w"})


def test_the_table_of_bytes_ends_with_all_of_them():
    record = lesson.record(causal=True)
    *_, launches, whole = re.findall("<tr>(.*?)</tr>", lesson.bytes_table(record))
    cells = [re.findall(">([^<>]+)</t[hd]>", row)[:4] for row in (launches, whole)]
    least = sum(row["least"] for row in record.memory().values())
    requested = record.requested
    assert cells == [
        [f"all, {name}", f"{requested:,}", f"{bytes_:,}", f"{requested / bytes_:.2f}"]
        for name, bytes_ in (("launch by launch", least), ("as one pass", record.compulsory))
    ]
    assert record.compulsory < least <= requested


def test_the_traced_line_grows_with_the_slider_and_lies_on_the_predicted_one():
    chunks = (16, 32, 96)
    for number, chunk in enumerate(chunks, 1):
        predicted, traced, least = lesson.traffic_picture(96, chunks, chunk, causal=False)["data"]
        assert len(traced["y"]) >= number
        assert traced["y"] == [dict(zip(predicted["x"], predicted["y"], strict=True))[x] for x in traced["x"]]
    assert predicted["y"] == sorted(predicted["y"], reverse=True)
    assert least["y"][0] < predicted["y"][-1]


def test_a_record_is_made_once():
    assert lesson.record(causal=True) is lesson.record(causal=True)


@pytest.mark.parametrize("sizes", [{"tile": 8}, {"chunk": 24}, {"tokens": 100}])
def test_sizes_that_do_not_divide_each_other_are_refused(sizes):
    with pytest.raises(ValueError, match="tile 16 or 32 must divide chunk, and chunk tokens"):
        lesson.record(**sizes)


# -- sources, and the compile table -----------------------------------------------------------------------------------


def code(shown):
    """The lines of all excerpts, as a reader copies them."""
    lines = (html.unescape(line) for line in re.findall("<span[^>]*>(.*?)</span>", shown))
    return "\n".join(line.rstrip() for line in lines)


def test_excerpts_are_the_lines_of_the_files_without_docstrings():
    shown = code(lesson.beside(reference, ["write", "attention: if causal"], ["scan_kernel"]))
    for line in (
        "    kept = np.exp(state.log_scale - pivot)",
        "# in attention\nif causal:\n",
        "def write(state, log_phi_k, v):",
    ):
        assert line in shown
    kernel = Path(lesson.RACE).read_text(encoding="utf-8").split("def scan_kernel(")[1].split("@triton.jit")[0]
    body = textwrap.dedent(kernel.split('"""')[2].split("\n# --")[0]).strip()
    assert "no dot" not in shown
    assert textwrap.indent(body, "    ") in shown


def test_the_constants_of_a_kernel_are_one_word_in_its_signature():
    assert "def scan_kernel(sums, first, last, bounds, H, E, constants):" in lesson.beside(
        reference, [], ["scan_kernel"]
    )


@pytest.mark.parametrize(("name", "words"), [("writes", "writes must stand"), ("attention: while", "begins with")])
def test_an_excerpt_that_is_not_there_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        lesson.beside(reference, [name], [])


def test_the_compile_table_has_a_row_a_kernel_and_a_column_a_target(monkeypatch, tmp_path):
    entry = {"registers": 96, "spill_bytes": 0, "shared_bytes": 8192, "occupancy": 0.5}
    keys = ("write_kernel.bf16-p4l4-k128v128-causal.sm_90", "read_kernel.bf16-p4l4-k128v128.gfx942")
    monkeypatch.setattr(lesson, "BUDGET", tmp_path / "budget.json")
    assert "No compile table is stored" in lesson.compiled_table()
    lesson.BUDGET.write_text(json.dumps(dict.fromkeys(keys, entry)))
    head, write, _, read, *_ = lesson.compiled_table().split("</tr>")
    assert head.index("sm_90") < head.index("gfx942")
    taken = "96 registers, 0 bytes spilled, 8,192 bytes shared, 50 % of the warps at once"
    assert [row.index(taken) < row.index("–") for row in (write, read)] == [True, False]


# -- without Triton ---------------------------------------------------------------------------------------------------


def test_without_triton_everything_says_so_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(lesson.sys, "platform", "linux")
    sentence = "the package triton is not installed; get it with: pip install triton"
    record = lesson.record.__wrapped__()
    assert record.why_not == lesson.why_not() == sentence
    assert lesson.predicted.__wrapped__(tokens=96, chunk=32) is None
    assert lesson.who_touches_what(record)["layout"]["annotations"][0]["text"] == sentence
    assert sentence in lesson.bytes_table(record)
    monkeypatch.setattr(lesson, "record", lesson.record.__wrapped__)
    assert lesson.traffic_picture(96, (32,), 32, causal=True)["layout"]["annotations"][0]["text"] == sentence
    verdict = lesson.check("order", given("order"))
    assert (verdict.passed, str(verdict)) == (None, f"Not checked.\n{sentence}")
    triton, tl = lesson.kernel_language()
    exec(given("order"), {"triton": triton, "tl": tl})


def test_where_triton_has_no_package_nobody_is_told_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(lesson.sys, "platform", "darwin")
    assert "Linux alone" in lesson.why_not()
    assert "pip" not in lesson.why_not()
