"""The GPU's digest kernel against the torch path, which the definition is tested on."""

from collections.abc import Sequence

import pytest
import torch

from baton_kernels import digest
from baton_kernels.gpu import digest as gpu_digest

CASES = [([2, 0, 3], 0, 48), ([1], 5, 7), ([3, 1], 10, 20), ([0], 16, 0)]


def random_pool(dtype: torch.dtype, device: torch.device, dim: int, layers: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dim)
    return torch.randn(4, 2, layers, 2, 16, dim, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("dim", "layers"), [(64, 5), (80, 4)])
@pytest.mark.parametrize(("blocks", "start", "count"), CASES)
def test_equals_the_torch_path(
    dtype: torch.dtype,
    dim: int,
    layers: int,
    blocks: Sequence[int],
    start: int,
    count: int,
    kernel_device: torch.device,
) -> None:
    pool = random_pool(dtype, kernel_device, dim, layers)
    expected = digest.kv_digest_tensor(pool, blocks, start, count, 3, 9)
    assert gpu_digest.kv_digest_tensor(pool, blocks, start, count, 3, 9).item() == expected.item()


def test_copies_the_blocks_on_the_way(kernel_device: torch.device) -> None:
    pool = random_pool(torch.bfloat16, kernel_device, 64, 5)
    out = torch.full_like(pool[:3], 7.0)
    got = gpu_digest.kv_digest_tensor(pool, [2, 0, 3], 4, 30, out=out)
    assert got.item() == digest.kv_digest_tensor(pool, [2, 0, 3], 4, 30).item()
    assert torch.equal(out[:3], pool[[2, 0, 3]])


def test_a_range_outside_the_blocks_is_refused(kernel_device: torch.device) -> None:
    pool = random_pool(torch.float32, kernel_device, 64, 1)
    with pytest.raises(ValueError, match="got 1 block ids, expected 2"):
        gpu_digest.kv_digest_tensor(pool, [0], 0, 17)
