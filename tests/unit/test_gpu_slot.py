"""Which GPU a worker of a machine takes."""

import os
from pathlib import Path

import pytest

from baton import gpu_slot
from baton.errors import BatonError
from baton.gpu_slot import main, num_gpus, take_slot


def test_every_gpu_gets_one_worker_before_any_gets_two_and_a_dead_ones_is_free(tmp_path: Path) -> None:
    taken = [take_slot(tmp_path, gpus=2, workers_per_gpu=2) for _ in range(4)]
    assert [gpu for gpu, _ in taken] == [0, 1, 0, 1]
    with pytest.raises(BatonError, match="start fewer workers"):
        take_slot(tmp_path, gpus=2, workers_per_gpu=2)
    os.close(taken[1][1])
    gpu, again = take_slot(tmp_path, gpus=2, workers_per_gpu=2)
    assert gpu == 1
    for descriptor in (taken[0][1], taken[2][1], taken[3][1], again):
        os.close(descriptor)


def test_gpus_are_device_nodes(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert num_gpus(tmp_path) == 2


def test_the_worker_gets_the_device_and_keeps_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(gpu_slot, "num_gpus", lambda: 1)
    monkeypatch.setattr(os, "execvp", lambda _, command: run.append(command))
    main(["--locks", str(tmp_path), "--", "baton", "decode", "--port", "1"])
    assert run == [["baton", "decode", "--port", "1", "--device", "cuda:0"]]
    with pytest.raises(SystemExit):
        main(["--locks", str(tmp_path), "--", "baton"])


def test_a_machine_without_gpus_is_told_of_the_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_slot, "num_gpus", lambda: 0)
    with pytest.raises(SystemExit):
        main(["--locks", str(tmp_path), "--", "baton"])
    assert "docker-compose.cpu.yml" in capsys.readouterr().err
