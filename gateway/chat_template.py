"""A model's chat template: messages in, prompt text out."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.errors import BatonError, ErrorCode, invalid

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """Renders messages the way transformers' `apply_chat_template` does, in a sandbox."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises:
        BatonError: FAILED_PRECONDITION when `source` is no valid template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"the model's chat template does not compile: {error}; correct the template",
            ) from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt up to where the assistant's answer begins.

        Raises:
            BatonError: INVALID_ARGUMENT with the template's own message when it refuses `messages`.
        """
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except Exception as error:  # a template can raise anything that an expression can
            raise invalid(
                f"prompt.chat: the model's chat template refused the messages: {error}; "
                "change the messages, or send prompt.text"
            ) from error


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """The template in chat_template.jinja or else in tokenizer_config.json; None when the model has none."""
    config_file = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(config_file.read_text()) if config_file.is_file() else {}
    template_file = folder / "chat_template.jinja"
    source = template_file.read_text() if template_file.is_file() else _default_template(config.get("chat_template"))
    if source is None:
        return None
    special = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name) is not None}
    return ChatTemplate(source, special)


def _default_template(value: str | list[dict[str, str]] | None) -> str | None:
    """Some models have several named templates; the one for plain chat is called "default"."""
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}.get("default")
    return value


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Unlike jinja2's own filter this one leaves <, > and & as they are: prompts are not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
