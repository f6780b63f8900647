"""Local folders, Hugging Face ids, and names that are neither."""

import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from fetch_samples import write_gguf
from huggingface_hub.errors import LocalEntryNotFoundError

from baton.errors import BatonError, ErrorCode
from baton.fetch.cache import cached_folder, resolve_model
from baton.fetch.checksums import read_sums
from baton.fetch.convert import convert_gguf
from baton.fetch.fetch import fetch_model
from baton.load_options import LoadFormat
from baton.model_folder import servable_folder


@pytest.fixture(scope="module")
def good_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("local")
    write_gguf(work / "tiny.gguf")
    (work / "model").mkdir()
    convert_gguf(work / "tiny.gguf", work / "model")
    return work / "model"


@pytest.fixture
def folder(good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(good_folder, tmp_path / "mine"))


def test_a_good_folder_is_checked_and_used_in_place(folder: Path) -> None:
    assert fetch_model(str(folder)) == folder
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "no config.json in"),
        ("tokenizer.json", r"has no tokenizer\.json"),
        ("model.safetensors", r"has no \*\.safetensors"),
    ],
)
def test_a_folder_without_a_file_is_refused_by_its_name(folder: Path, name: str, message: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BatonError, match=message):
        fetch_model(str(folder))


def test_cut_off_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    with pytest.raises(BatonError, match=f"got {size - 1} bytes, expected {size}"):
        fetch_model(str(folder))
    os.truncate(weights, 100)
    with pytest.raises(BatonError, match="not a whole safetensors file"):
        fetch_model(str(folder))


def test_a_missing_shard_is_refused(folder: Path) -> None:
    index = '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BatonError, match=r"model-2\.safetensors is missing"):
        fetch_model(str(folder))


def test_a_hub_id_becomes_a_folder_with_checksums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(model_id: str, local_dir: Path, **patterns: Any) -> None:
        assert model_id == "owner/tiny"
        shutil.copytree(folder, local_dir)
        (local_dir / "SHA256SUMS").unlink()
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    fetched = fetch_model("owner/tiny")
    assert fetched == cached_folder("owner/tiny") == resolve_model("owner/tiny")
    assert fetched.name == "owner--tiny"
    assert read_sums(fetched) == read_sums(folder)
    monkeypatch.delattr(huggingface_hub, "snapshot_download")
    assert fetch_model("owner/tiny", verify=True) == fetched


def test_offline_the_error_says_so_and_no_folder_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: Any, **options: Any) -> None:
        raise LocalEntryNotFoundError("An error happened while trying to locate the files.\nMore of it.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        BatonError, match=r"cannot reach the Hugging Face Hub for owner/tiny: An error .* files\. "
    ) as caught:
        fetch_model("owner/tiny")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert not cached_folder("owner/tiny").exists()


@pytest.mark.parametrize("name", ["nosuch", "a/b/c"])
def test_a_name_that_is_nothing_is_refused_with_what_is_expected(folder: Path, name: str) -> None:
    with pytest.raises(BatonError, match=f"got model '{name}', expected smollm2-135m"):
        fetch_model(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nosuch", "run `baton fetch nosuch` first"), ("./nosuch", "does not exist"), ("/", r"has no config\.json")],
)
def test_resolving_fetches_nothing_and_says_how_to(folder: Path, name: str, message: str) -> None:
    with pytest.raises(BatonError, match=message) as caught:
        resolve_model(name)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    file = tmp_path / "tiny.gguf"
    with pytest.raises(BatonError, match=r"tiny\.gguf, which is no file"):
        fetch_model(str(file))
    write_gguf(file)
    with pytest.raises(BatonError, match=r"run `baton fetch .*/tiny.gguf` first"):
        resolve_model(str(file))
    stages: list[str] = []
    folder = fetch_model(str(file), lambda stage, done, total: stages.append(stage))
    assert "convert" in stages
    assert resolve_model(str(file)) == servable_folder(file, LoadFormat.AUTO) == folder
    stages.clear()
    assert fetch_model(str(file), lambda stage, done, total: stages.append(stage)) == folder
    assert not stages
    os.utime(file, ns=(0, 0))
    assert fetch_model(str(file)) != folder


@pytest.mark.parametrize(("model", "load_format"), [("x.gguf", "dummy"), ("x.gguf", "safetensors"), ("x", "gguf")])
def test_paths_and_formats_that_do_not_go_together_are_refused(model: str, load_format: str) -> None:
    with pytest.raises(BatonError, match=f"--load-format: got {load_format} for {model}, expected"):
        servable_folder(model, LoadFormat(load_format))


def test_a_folder_needs_no_conversion(folder: Path) -> None:
    for load_format in (LoadFormat.AUTO, LoadFormat.SAFETENSORS, LoadFormat.DUMMY):
        assert servable_folder(str(folder), load_format) == folder
