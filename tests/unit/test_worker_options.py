"""A worker's command line: defaults agree with the engine's, and what makes no sense is refused in words."""

from pathlib import Path

import pytest

from baton.arguments import parse_bytes, show_bytes
from baton.config import PROCESS_CONNECTORS, StackOptions
from baton.load_options import LoadFormat, ModelImpl
from baton.types import Role, WorkerRef
from baton.worker.options import parse_options
from engine.config import EngineConfig
from engine.options import engine_config
from kv_transfer.registry import CONNECTORS

WORKER = WorkerRef("p0", "i0")


def test_the_defaults_are_the_engines() -> None:
    options = parse_options("prefill", ["--model", "/models/m"])
    assert engine_config(options, Role.PREFILL, WORKER) == EngineConfig("/models/m", Role.PREFILL, WORKER, "m")
    assert options.name.startswith("prefill-")


def test_the_stacks_pool_is_as_large_as_a_single_workers() -> None:
    assert StackOptions().kv_cache_bytes == parse_options("decode", ["--model", "/m"]).kv_cache_bytes


def test_a_fetched_models_name_becomes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    options = parse_options("prefill", ["--model", "mine"])
    assert (options.model, options.served_name) == (str(folder), "mine")


def test_every_flag_reaches_the_engine() -> None:
    flags = "--model /m --model-name n --device cuda:1 --dtype bfloat16 --block-size 32 --kv-cache-bytes 512MiB"
    flags += " --max-model-len 100 --max-num-batched-tokens 7 --max-num-seqs 3 --num-threads 2 --connector nixl"
    flags += " --lease-s 5 --longest-write-s 0.5 --clock-margin-s 0.25 --no-prefix-caching --growth-reserve-blocks 0"
    flags += " --load-format dummy --model-impl transformers"
    flags += " --scheduling-policy priority --priority-aging-s 3 --long-prefill-token-threshold 4"
    flags += " --swap-space-bytes 0 --gpu-memory-utilization 0.5 --no-step-overlap"
    config = engine_config(parse_options("decode", flags.split()), Role.DECODE, WORKER)
    assert (config.model_name, config.device, config.dtype, config.num_threads) == ("n", "cuda:1", "bfloat16", 2)
    assert (config.max_model_len, config.connector) == (100, "nixl")
    assert (config.cache.block_size, config.cache.kv_cache_bytes) == (32, 512 << 20)
    assert (config.load_format, config.model_impl) == (LoadFormat.DUMMY, ModelImpl.TRANSFORMERS)
    assert not config.cache.enable_prefix_caching
    assert (config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs) == (7, 3)
    assert (config.cache.swap_space_bytes, config.cache.gpu_memory_utilization) == (0, 0.5)
    assert config.scheduler.growth_reserve_blocks == 0
    assert (config.scheduler.policy, config.scheduler.priority_aging_s) == ("priority", 3)
    assert config.scheduler.long_prefill_token_threshold == 4
    assert config.scheduler.overlap_steps is False
    assert (config.lease.lease_s, config.lease.longest_write_s, config.lease.clock_margin_s) == (5, 0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "expected"), [("2GiB", 2 << 30), ("512MiB", 512 << 20), ("1.5 KiB", 1536), ("4096", 4096), ("8B", 8)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected
    assert parse_bytes(show_bytes(expected)) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model /m --kv-cache-bytes 2GB", "got '2GB', expected a size such as 2GiB"),
        ("--model /m --block-size 0", "got '0', expected an integer of at least 1"),
        ("--model /m --lease-s -1", "got '-1', expected seconds above 0"),
        ("--model /m --gpu-memory-utilization 1.5", "got '1.5', expected a share above 0"),
        ("--model /m --scheduling-policy random", "invalid choice: 'random'"),
        ("--model /m --dtype int8", "invalid choice: 'int8'"),
        ("--model /m --aggregated", "unrecognized arguments: --aggregated"),
        ("--model /m --connector inproc", "invalid choice: 'inproc'"),
        ("--model nosuch", "run `baton fetch nosuch` first"),
        ("--model /m --load-format bin", "invalid choice: 'bin'"),
        ("", "--model"),
    ],
)
def test_nonsense_is_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_options("prefill", flags.split())
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_the_connectors_offered_are_there() -> None:
    assert set(PROCESS_CONNECTORS) <= set(CONNECTORS)


def test_only_decode_aggregates() -> None:
    assert parse_options("decode", ["--model", "/m", "--aggregated"], can_aggregate=True).aggregated


def test_a_gguf_file_is_called_without_its_ending() -> None:
    assert parse_options("decode", ["--model", "/models/tiny-q4.gguf"]).served_name == "tiny-q4"
    assert parse_options("decode", ["--model", "/models/v1.5"]).served_name == "v1.5"
