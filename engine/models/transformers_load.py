"""Loads a model folder by transformers' own means and puts it on the paged pool."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

from baton.errors import BatonError, ErrorCode
from baton.load_options import LoadFormat
from baton.model_spec import ModelSpec
from engine.models.dummy import fill_module
from engine.models.paged_interface import NAME, register, unserved
from engine.models.probe import check_model
from engine.models.transformers_model import BRIDGES, TransformersModel

_ROPES_BY_LONGEST = ("dynamic", "longrope")


def load_transformers_model(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, max_model_len: int, load_format: LoadFormat
) -> TransformersModel:
    """Builds, fills and tries a model.

    Raises:
        BatonError: FAILED_PRECONDITION when transformers is missing or the weights do not fit, UNIMPLEMENTED with the
            reason when the model cannot run on paged attention.
    """
    for package in ("transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"got architecture {spec.architecture}, which runs on transformers' code, but the package {package} is "
                "not installed; pip install 'baton[transformers]'",
            )
    _check_config(spec, max_model_len)
    register()
    attention = "eager" if spec.architecture in BRIDGES else NAME  # a bridge replaces it
    with _its_errors(spec):
        if load_format is LoadFormat.DUMMY:
            loaded = _dummy(spec, dtype, device, attention)
        else:
            loaded = _from_folder(spec, dtype, device, attention)
        model = TransformersModel(loaded.eval(), spec.windows, max_model_len)
        check_model(model, spec, dtype, device)
    return model


def _check_config(spec: ModelSpec, max_model_len: int) -> None:
    """Refuses what a model's code does behind the attention function's back, and a trial on few tokens cannot show."""
    for field in ("attention_chunk_size", "use_bidirectional_attention", "layer_types"):
        if field in spec.special:
            raise unserved(f"{spec.path}/config.json has {field} = {spec.special[field]!r}")
    rope = spec.rope
    if rope.type in _ROPES_BY_LONGEST and max_model_len > rope.original_max_position:
        raise unserved(
            f"{spec.path}/config.json has rope_type {rope.type!r}, which transformers chooses by a batch's longest "
            f"sequence for all of it; lower --max-model-len, {max_model_len} now, to {rope.original_max_position}"
        )


def _from_folder(spec: ModelSpec, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # of a process whose stderr is a log
    model, found = AutoModelForCausalLM.from_pretrained(
        spec.path,
        dtype=dtype,
        device_map={"": device},
        attn_implementation=attention,
        output_loading_info=True,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    for key, what in (
        ("missing_keys", "lacks {} tensors, such as {}"),
        ("mismatched_keys", "has {} tensors of another shape, such as {}"),
        ("unexpected_keys", "has {} tensors that the model does not use, such as {}"),
    ):
        if found.get(key):
            text = what.format(len(found[key]), sorted(map(str, found[key]))[0])
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION, f"{spec.path} {text}; give weights and config.json of one model"
            )
    return model


def _dummy(spec: ModelSpec, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(spec.path, local_files_only=True, trust_remote_code=False)
    # Made on the device, not without one: what a model computes when it is made, such as frequencies, is then there.
    with device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    fill_module(model)
    return model


@contextlib.contextmanager
def _its_errors(spec: ModelSpec) -> Iterator[None]:
    """Whatever a model's code raises on a first try is a reason not to serve it."""
    try:
        yield
    except (BatonError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), "")
        raise BatonError(
            ErrorCode.UNIMPLEMENTED,
            f"transformers cannot serve {spec.architecture} from {spec.path} on paged attention: "
            f"{type(error).__name__}: {first_line}",
        ) from error
