"""A model's chat template: messages in, prompt text out."""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.errors import BatonError, ErrorCode, invalid

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# What a template is given by us: nobody may give another value by name.
RESERVED_NAMES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", *_SPECIAL_TOKENS)
)


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a template is told beside the messages."""

    tools: Sequence[Mapping[str, Any]] | None = None  # as OpenAI's API has them
    documents: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # names that this model's template knows
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the text ends where the last message does


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
        self.source = source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"the model's chat template does not compile: {error}; correct the template",
            ) from error

    def render(self, messages: Sequence[Mapping[str, Any]], options: RenderOptions | None = None) -> str:
        """The prompt up to where the assistant's answer begins.

        Raises:
            BatonError: INVALID_ARGUMENT with the template's own message when it refuses `messages`.
        """
        options = options or RenderOptions()
        try:
            text = self._template.render(
                messages=messages,
                tools=options.tools,
                documents=options.documents,
                add_generation_prompt=options.add_generation_prompt,
                **options.kwargs,
                **self._special_tokens,
            )
        except Exception as error:  # a template can raise anything that an expression can
            raise invalid(
                f"prompt.chat: the model's chat template refused the messages: {error}; "
                "change the messages, or send prompt.text"
            ) from error
        return _without_end(text, str(messages[-1]["content"])) if options.continue_final_message else text


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


def _without_end(text: str, last_content: str) -> str:
    """What the template writes behind the last message is cut, as in transformers."""
    content = last_content.strip()
    start = text.rfind(content) if content else -1
    if start < 0:
        raise invalid(
            "continue_final_message: got true, but the chat template does not show the last message's content as is; "
            "set it to false"
        )
    return text[: start + len(content)]


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Unlike jinja2's own filter this one leaves <, > and & as they are: prompts are not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
