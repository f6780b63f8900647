"""The offline parts: floors that follow from a model's shape, tables, the roofline's plot, scripts that are there."""

import json
import re
from pathlib import Path

import pytest

from baton.bench import offline
from baton.bench.costs import (
    CEILINGS,
    Ceiling,
    decode_cost,
    head_weights,
    kv_bytes_per_token,
    matrix_weights,
    prefill_cost,
)
from baton.bench.provenance import ROOT
from baton.bench.roofline import draw, points, roof
from baton.cli import main
from baton.cli.bench.lines import result_rows
from baton.errors import BatonError
from baton.load_options import LoadFormat
from baton.model_spec import load_model_spec

LLAMA = load_model_spec(ROOT / "benchmarks" / "models" / "llama8b", None, LoadFormat.DUMMY)
H200 = "NVIDIA H200"


def step(metric: str, value: float, **params: int) -> dict[str, object]:
    return {"metric": metric, "model": "llama8b", "params": params, "value": value, "unit": "ms", "gpu": H200}


def test_weights_and_cache_have_the_sizes_of_the_published_model() -> None:
    norms = LLAMA.hidden_size * (2 * LLAMA.num_layers + 1)
    assert matrix_weights(LLAMA) + 2 * head_weights(LLAMA) + norms == 8_030_261_248  # embedding and head are not tied
    assert kv_bytes_per_token(LLAMA, 2) == 131_072


def test_a_decode_step_is_bound_by_reading_and_a_prompt_by_computing() -> None:
    one, many, ceiling = decode_cost(LLAMA, 1, 1000), decode_cost(LLAMA, 256, 1000), CEILINGS[H200]
    assert one.flop / many.flop == pytest.approx(1 / 256)
    assert many.read_bytes - one.read_bytes == 255 * 1000 * 131_072
    assert ceiling.floor_s(one) == one.read_bytes / ceiling.read_bytes_s
    prompt = prefill_cost(LLAMA, 8192)
    assert ceiling.floor_s(prompt) == prompt.flop / ceiling.flop_s
    longer = prefill_cost(LLAMA, 16384)
    assert 2 < longer.flop / prompt.flop < 2.3  # attention grows with the square


def test_a_roof_has_its_ridge_where_both_bounds_meet() -> None:
    ceiling = Ceiling(read_bytes_s=2.0, flop_s=10.0)
    assert [roof(ceiling, intensity) for intensity in (1.0, 5.0, 50.0)] == [2.0, 10.0, 10.0]


def test_steps_get_a_floor_and_other_lines_keep_theirs() -> None:
    found = offline.with_floor(step("decode_step_ms", 5.0, batch=1, context=1100))
    assert found["floor"] == pytest.approx(3.6, rel=0.02)
    assert offline.with_floor(found | {"floor": 1.0})["floor"] == 1.0
    assert "floor" not in offline.with_floor(step("other_ms", 1.0))


def test_shares_are_such_that_more_is_better() -> None:
    baseline = {"name": "peer", "value": 8.0}
    time = {
        "metric": "t",
        "model": "m",
        "params": {"n": 1},
        "value": 10.0,
        "unit": "ms",
        "floor": 5.0,
        "baseline": baseline,
    }
    rate = time | {"unit": "tok/s", "floor": 20.0}
    rows = result_rows([time, rate, {"metric": "x", "model": "m", "params": {}, "value": 1.0, "unit": "s"}])
    assert rows[0] == ("t", "m n=1", "10.00 ms", "5.00 ms", "50%", "8.00 (peer)", "0.80x")
    assert rows[1][4:] == ("50%", "8.00 (peer)", "1.25x")
    assert rows[2][3:] == ("", "", "", "")


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_committed_steps_are_plotted_below_the_roof(tmp_path: Path, ending: str) -> None:
    found, gpu = points(offline.result_entries("gpu_steps"))
    assert len(found) >= 18
    assert all(point.flop_s < roof(CEILINGS[gpu], point.intensity) for point in found)
    draw(found, gpu, tmp_path / f"roofline{ending}")
    data = (tmp_path / f"roofline{ending}").read_bytes()
    assert data.startswith(b"\x89PNG" if ending == ".png" else b"<?xml")
    draw(found, gpu, tmp_path / f"again{ending}")
    assert (tmp_path / f"again{ending}").read_bytes() == data


def test_a_plot_needs_steps_and_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match="got steps on no GPU"):
        points([step("other", 1.0)])
    with pytest.raises(BatonError, match=r"ends in \.png or \.svg"):
        draw([], H200, tmp_path / "plot.pdf")


def test_results_that_are_not_there_yet_are_named(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text(json.dumps(step("decode_step_ms", 5.0, batch=1, context=10)) + "\n")
    assert len(offline.result_entries("some", tmp_path)) == 1
    with pytest.raises(BatonError, match=r"other\.jsonl; run the benchmark first"):
        offline.result_entries("other", tmp_path)


def test_the_scripts_of_the_suites_write_the_results_that_are_shown() -> None:
    for script in (script for devices in offline.SUITES.values() for found in devices.values() for script in found):
        text = (ROOT / "benchmarks" / script.path).read_text()
        assert re.search(rf"""write\(["']{script.results}["'],""", text), script.path


def test_the_commands_show_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "latency", "--device", "gpu", "--show"])
    assert caught.value.code == 0
    assert "decode_step_ms" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "transfer", "--device", "cpu", "--show"])
    assert "got --device cpu for transfer, expected gpu" in capsys.readouterr().err
