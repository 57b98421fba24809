"""The comparison must be able to fail: by a row, by the whole, by NaN, by shape."""

import json

import numpy as np
import pytest

from attnlab import backend, draws, interpreted, parity
from attnlab.race import draw_planes

EXACT = draws.normal(1, 1, 40, 4)
LOW = EXACT.astype(np.float32).astype(np.float64)
CPU = ("numba", "torch")


def compare(got, **changes):
    return parity.compare(got, EXACT, LOW, **({"terms": 16} | changes))


def test_the_low_precision_reference_itself_passes():
    seen = compare(LOW)
    assert seen.ok
    assert 0 < seen.max_rel <= seen.tolerance


def test_one_wrong_row_fails_though_the_whole_looks_right():
    got = LOW.copy()
    got[17] *= 1 + 1e-5
    seen = compare(got)
    assert not seen.ok
    assert seen.worst_row == (17,)
    assert "row [17]" in seen.reason


def test_an_error_spread_over_all_rows_fails_as_a_whole():
    tolerance = compare(LOW).overall_tolerance
    got = EXACT * (1 + 1.01 * tolerance)
    assert not compare(got).ok


def test_a_small_row_is_judged_by_its_own_size():
    exact = EXACT.copy()
    exact[3] *= 1e-2
    got = exact.copy()
    got[3] += 1e-6 * np.abs(exact).max()
    low = exact.astype(np.float32)
    assert not parity.compare(got, exact, low, terms=16).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_never_pass(bad):
    got = LOW.copy()
    got[0, 0] = bad
    seen = compare(got)
    assert not seen.ok
    assert seen.worst_row == (0,)


def test_a_wrong_shape_fails_with_both_shapes():
    seen = compare(LOW[:-1])
    assert not seen.ok
    assert "(39, 4)" in seen.reason
    assert "(40, 4)" in seen.reason


def test_a_reference_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="exact and low must be finite"):
        parity.compare(EXACT, EXACT * np.nan, LOW, terms=1)


def test_rounding_to_a_coarser_output_type_widens_the_tolerance_by_half_its_eps():
    half = compare(EXACT.astype(np.float16), out_dtype=np.float16)
    assert half.ok
    assert not compare(EXACT.astype(np.float16)).ok
    assert half.tolerance == pytest.approx(compare(LOW).tolerance + np.finfo(np.float16).eps)


def case(**changes):
    q, k, v = (draws.normal(0, stream, 9, 3 * n).reshape(1, 9, 3, n) for stream, n in ((1, 5), (2, 5), (3, 4)))
    return {"q": q, "k": k, "v": v, "planes": draw_planes(2, 2, 5), "sharpness": 1.5} | changes


def test_verify_reports_every_implementation_or_why_not():
    reports = {report.impl: report for report in parity.verify("race", case(), terms=9 + 8)}
    assert list(reports) == ["numba", "torch", "triton"]
    for report in reports.values():
        assert report.ran is (report.why_not is None)
        assert report.ok is report.ran, report.reason
        if report.ran and report.evidence:  # tests/test_interpreted.py has more of these
            assert (report.impl, report.device, report.time_ms) == ("triton", "CPU, interpreted", None)
        elif report.ran:
            assert report.time_ms > 0
            assert report.device == "CPU" or report.impl == "triton"


def test_a_process_that_interprets_gives_no_time_and_says_what_was_done(monkeypatch):
    pytest.importorskip("numba", reason="the package numba is not installed")
    monkeypatch.setattr(backend, "device", lambda impl: "CPU, interpreted")
    (report,) = parity.verify("race", case(), terms=9 + 8, impls=["numba"])
    assert report.ok
    assert report.time_ms is None
    assert report.evidence == interpreted.evidence()
    assert list(report.table) == interpreted.compiled()


def test_verify_reports_a_refusal_with_its_range_and_not_as_a_pass():
    reports = {report.impl: report for report in parity.verify("race", case(sharpness=100.0), terms=9 + 8)}
    for impl in ("numba", "torch", "triton"):
        if reports[impl].why_not and "not installed" in reports[impl].why_not:
            continue
        assert not reports[impl].ok
        assert "covers" in reports[impl].why_not


def test_a_report_is_plain_json_also_with_nan():
    report = parity.Report("numba", True, False, None, float("nan"), float("inf"), np.float64(1e-6), 0.5, "CPU", "NaN")
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert (record["max_abs"], record["max_rel"], record["tolerance"], record["ok"]) == ("nan", "inf", 1e-6, False)


def test_verify_catches_an_implementation_that_is_wrong(monkeypatch):
    numba_impl = pytest.importorskip("attnlab.race.numba_impl")
    honest = numba_impl.attention
    monkeypatch.setattr(numba_impl, "attention", lambda *a, **kw: honest(*a, **kw | {"sharpness": 1.501}))
    (report,) = parity.verify("race", case(), terms=9 + 8, impls=["numba"])
    assert report.ran
    assert not report.ok


def test_an_implementation_that_raises_fails_its_own_row_and_hides_no_other(monkeypatch):
    numba_impl = pytest.importorskip("attnlab.race.numba_impl")

    def broken(*_, **__):
        raise ZeroDivisionError("no mass")

    monkeypatch.setattr(numba_impl, "attention", broken)
    reports = {report.impl: report for report in parity.verify("race", case(), terms=9 + 8, impls=CPU)}
    assert list(reports) == list(CPU)
    assert reports["numba"].ran
    assert not reports["numba"].ok
    assert reports["numba"].reason == "ZeroDivisionError: no mass"


def test_an_implementation_that_returns_no_array_fails_its_own_row(monkeypatch):
    numba_impl = pytest.importorskip("attnlab.race.numba_impl")
    monkeypatch.setattr(numba_impl, "attention", lambda *_, **__: None)
    reports = {report.impl: report for report in parity.verify("race", case(), terms=9 + 8, impls=CPU)}
    assert list(reports) == list(CPU)
    assert not reports["numba"].ok
    assert reports["numba"].reason


def test_an_implementation_cannot_write_into_the_inputs_of_the_next_one(monkeypatch):
    numba_impl = pytest.importorskip("attnlab.race.numba_impl")

    def rude(q, *_, **__):
        q[:] = 0
        return q

    monkeypatch.setattr(numba_impl, "attention", rude)
    rows = {report.impl: report for report in parity.verify("race", case(), terms=9 + 8, impls=CPU)}
    assert "read-only" in rows["numba"].reason
    assert rows["torch"].ok is rows["torch"].ran


def test_complex_numbers_never_pass():
    seen = compare(LOW + 0j)
    assert not seen.ok
    assert "complex" in seen.reason
