"""Where Triton kernels are tested: in Triton's interpreter on the CPU, compiled on a GPU (marker `gpu`)."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before the first import of one


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernel_device(request: pytest.FixtureRequest) -> torch.device:
    """A device that Triton kernels run on."""
    device = torch.device(request.param)
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled here; the interpreter's run is for machines without a GPU")
    return device
