"""Reading a model's weights: right bytes, one tensor at a time, and errors that name the file or the tensor."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import BatonError, ErrorCode
from baton.load_options import LoadFormat, ModelImpl
from baton.model_spec import load_model_spec
from engine.models.checkpoint import read_checkpoint
from engine.models.dummy import dummy_tensor
from engine.models.registry import load_model
from engine.models.shapes import shape_of
from engine.models.source import MappedSource, StagedSource, TensorSource
from engine.models.staged_reader import StagedReader
from engine.models.weights import Weights
from tests.fakes.tiny_models import write_tiny_model

CPU = torch.device("cpu")
TENSORS = {
    "a": torch.randn(300, 7, generator=torch.Generator().manual_seed(1)),
    "b": torch.randn(41, 7, generator=torch.Generator().manual_seed(2)).bfloat16(),
    "c": torch.randn(5, generator=torch.Generator().manual_seed(3)).half(),
    "empty": torch.zeros(0, 7),
}


def write_shards(folder: Path) -> Path:
    """Two shards and an index, and a file that the index does not list."""
    save_file({name: TENSORS[name] for name in ("a", "c")}, folder / "model-1.safetensors")
    save_file({name: TENSORS[name] for name in ("b", "empty")}, folder / "model-2.safetensors")
    save_file({"other": torch.zeros(1)}, folder / "consolidated.safetensors")
    shard_of = {"a": "model-1", "c": "model-1", "b": "model-2", "empty": "model-2"}
    weight_map = {name: f"{shard}.safetensors" for name, shard in shard_of.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.fixture(params=["mapped", "staged", pytest.param("gpu", marks=pytest.mark.gpu)])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TensorSource]:
    """Both ways to read; on a GPU the second one is taken, and it does the same without one."""
    write_shards(tmp_path)
    device = torch.device("cuda" if request.param == "gpu" else "cpu")
    source = MappedSource(tmp_path) if request.param == "mapped" else StagedSource(tmp_path, device)
    yield source
    source.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sharded_tensors_come_out_whole(source: TensorSource, dtype: torch.dtype) -> None:
    assert set(source.names) == set(TENSORS)
    for name, tensor in TENSORS.items():
        got = source.read(name, dtype)
        assert got.dtype == dtype
        assert torch.equal(got.cpu(), tensor.to(dtype))
        out = torch.full_like(got, 7)
        source.read_into(name, out)
        assert torch.equal(out, got)


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 4097, 100_003])
def test_staged_reads_larger_than_all_buffers(tmp_path: Path, num_bytes: int) -> None:
    content = torch.randint(0, 256, (num_bytes + 9,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (tmp_path / "f").write_bytes(content.numpy().tobytes())
    reader = StagedReader(CPU, num_threads=3, buffer_bytes=4096)
    out = torch.zeros(num_bytes, dtype=torch.uint8)
    for start in (9, 0, 3):
        reader.read_into(tmp_path / "f", start, out)
        assert torch.equal(out, content[start : start + num_bytes])
    reader.close()
    reader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


def test_a_file_that_shrinks_or_goes_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(10_000))
    reader = StagedReader(CPU, num_threads=2, buffer_bytes=4096)
    with pytest.raises(BatonError, match=f"cannot read {tmp_path}/f: it ends after 10000 bytes"):
        reader.read_into(tmp_path / "f", 0, torch.zeros(10_001, dtype=torch.uint8))
    with pytest.raises(BatonError, match=f"cannot read {tmp_path}/g: .*No such file"):
        reader.read_into(tmp_path / "g", 0, torch.zeros(1, dtype=torch.uint8))
    reader.close()


def test_a_mapped_tensor_of_the_wanted_type_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    """So that a model needs host memory for what it makes of its weights, and for no second copy of them."""
    source = MappedSource(write_shards(tmp_path))
    pointer = source.read("a", torch.float32).data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [(line[0].split("-"), line[-1]) for line in maps]
    (file,) = [name for (low, high), name in ranges if int(low, 16) <= pointer < int(high, 16)]
    assert file == str(tmp_path / "model-1.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model-2.safetensors").unlink(), "model-2.safetensors is missing"),
        (lambda f: (f / "model-2.safetensors").write_bytes(b"\7\0\0"), "model-2.safetensors is not a whole"),
        (lambda f: (f / "model-1.safetensors").open("ab").write(b"x"), r"model-1.safetensors has \d+ bytes, expected"),
        (
            lambda f: save_file({"b": TENSORS["b"]}, f / "model-2.safetensors"),
            "model-2.safetensors has no tensor empty, which model.safetensors.index.json says",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{"), "index.json is not an index"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_files_name(tmp_path: Path, damage: object, message: str) -> None:
    write_shards(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(BatonError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def test_a_folder_without_weights_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match=r"no \*.safetensors in .*--load-format dummy"):
        read_checkpoint(tmp_path)


def test_a_tensor_of_another_shape_is_refused_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    tensors = load_file(tiny_llama / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].T.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BatonError, match=rf"got {name} of shape \[96, 64\], expected \[64, 96\]") as caught:
        load_model(load_model_spec(tmp_path), torch.float32, CPU, 16)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


@pytest.mark.parametrize("case", ["llama-biases", "qwen2", "qwen3", "phi3", "gemma3", "mixtral", "qwen3-moe"])
def test_shapes_are_known_without_weights(case: str, tmp_path: Path) -> None:
    write_tiny_model(case, tmp_path)
    spec = load_model_spec(tmp_path)
    for name, stored in read_checkpoint(tmp_path).items():
        assert shape_of(spec, name) == stored.shape, name
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    load_model(spec, torch.float32, CPU, 16, LoadFormat.DUMMY, ModelImpl.NATIVE)


def test_stacked_projections_stand_one_above_the_other(tiny_llama: Path) -> None:
    tensors = load_file(tiny_llama / "model.safetensors")
    prefixes = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    weights = Weights(MappedSource(tiny_llama), load_model_spec(tiny_llama), torch.float32, CPU)
    x = torch.randn(100, 64)  # more rows than take the packed path
    expected = x @ torch.cat([tensors[prefix + ".weight"] for prefix in prefixes]).T
    torch.testing.assert_close(weights.linear(prefixes)(x), expected)


def test_dummy_tensors_depend_on_name_and_seed_and_keep_their_scale() -> None:
    def make(name: str = "layers.0.up_proj.weight", seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return dummy_tensor(name, (128, 256), dtype, CPU, seed)

    assert torch.equal(make(), make())
    assert not torch.equal(make(), make(seed=1))
    assert not torch.equal(make(), make(name="layers.1.up_proj.weight"))
    norm = dummy_tensor("norm.weight", (64,), torch.float16, CPU)
    assert (norm - 1).abs().max() < 0.1
    x = torch.randn(32, 256)
    for _ in range(50):
        x = x + (x / x.std()) @ make(dtype=torch.bfloat16).float().repeat(2, 1).T
    assert 0.1 < x.std() < 100


def test_a_dummys_fingerprint_is_not_the_models(tiny_llama: Path, tmp_path: Path) -> None:
    dummy = load_model_spec(tiny_llama, load_format=LoadFormat.DUMMY).fingerprint
    assert dummy != load_model_spec(tiny_llama).fingerprint
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    assert load_model_spec(tmp_path, load_format=LoadFormat.DUMMY).fingerprint == dummy
    assert load_model_spec(tmp_path).fingerprint != dummy, "a folder whose weights are missing is not a dummy"
