"""`--device` as a torch device that is there."""

import torch

from baton.errors import invalid


def open_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        BatonError: INVALID_ARGUMENT when it is of a kind that Baton does not compute on, or not in this machine.
    """
    expected = "expected cpu, cuda or cuda:N"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise invalid(f"--device: got {name!r}, {expected}") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise invalid(f"--device: got {name!r}, {expected}")
    if not torch.cuda.is_available():
        reason = "finds no GPU or driver" if torch.version.cuda else "is built without CUDA"
        raise invalid(
            f"--device: got {name!r}, expected cpu, since torch {torch.__version__} {reason}; `baton doctor` tells more"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise invalid(f"--device: got {name!r}, expected cuda:0 to cuda:{count - 1}: torch sees {count} GPU(s) here")
    return device
