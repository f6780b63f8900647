"""/v1/responses: the output items of an answer, and the events by which a stream builds them."""

import secrets
from collections.abc import Iterator
from typing import Any

from baton.rpc import inference_pb2

Json = dict[str, Any]
Event = tuple[str, Json]  # its type, and all of it but type and number


class _TextItem:
    """What the model says, or thinks, as one part of one item."""

    def __init__(self, index: int, kind: str) -> None:
        """`kind`: "message" or "reasoning"."""
        self._index = index
        self._is_message = kind == "message"
        self._id = f"{'msg' if self._is_message else 'rs'}_{secrets.token_hex(12)}"
        self._event = "response.output_text" if self._is_message else "response.reasoning_text"
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        """The item without a text, then its part."""
        yield "response.output_item.added", {"output_index": self._index, "item": self._item("in_progress", [])}
        yield "response.content_part.added", self._place() | {"part": self._part("")}

    def add(self, text: str) -> Iterator[Event]:
        """More text."""
        self._pieces.append(text)
        delta: Json = {"delta": text}
        yield f"{self._event}.delta", self._place() | delta | ({"logprobs": []} if self._is_message else {})

    def end(self) -> Iterator[Event]:
        """The part, then the item, as a whole."""
        text = "".join(self._pieces)
        done: Json = {"text": text}
        yield f"{self._event}.done", self._place() | done | ({"logprobs": []} if self._is_message else {})
        yield "response.content_part.done", self._place() | {"part": self._part(text)}
        yield "response.output_item.done", {"output_index": self._index, "item": self.item("completed")}

    def item(self, status: str) -> Json:
        """With the text so far."""
        return self._item(status, [self._part("".join(self._pieces))])

    def _item(self, status: str, content: list[Json]) -> Json:
        if self._is_message:
            return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}
        return {"id": self._id, "type": "reasoning", "summary": [], "content": content, "status": status}

    def _part(self, text: str) -> Json:
        if self._is_message:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": text}

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class _CallItem:
    """A function call."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self._index = index
        self._id = f"fc_{secrets.token_hex(12)}"
        self._call: Json = {"type": "function_call", "call_id": call_id, "name": name}
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        """The call without arguments."""
        yield "response.output_item.added", {"output_index": self._index, "item": self.item("in_progress")}

    def add(self, text: str) -> Iterator[Event]:
        """More of the arguments."""
        self._pieces.append(text)
        yield "response.function_call_arguments.delta", self._place() | {"delta": text}

    def end(self) -> Iterator[Event]:
        """All of the arguments, then the item."""
        arguments = "".join(self._pieces)
        named = {"arguments": arguments, "name": self._call["name"]}
        yield "response.function_call_arguments.done", self._place() | named
        yield "response.output_item.done", {"output_index": self._index, "item": self.item("completed")}

    def item(self, status: str) -> Json:
        """With the arguments so far."""
        return self._call | {"id": self._id, "arguments": "".join(self._pieces), "status": status}

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index}


class Output:
    """The items of one answer: one is open at a time."""

    def __init__(self) -> None:
        self._items: list[_TextItem | _CallItem] = []
        self._open: str | None = None  # "message", "reasoning" or "call"

    def add(self, response: inference_pb2.ChatResponse) -> Iterator[Event]:
        """What `response` adds, as events."""
        if response.reasoning_content:
            yield from self._text("reasoning", response.reasoning_content)
        if response.content:
            yield from self._text("message", response.content)
        for delta in response.tool_calls:
            if delta.id:
                yield from self._begin("call", _CallItem(len(self._items), delta.id, delta.name))
            if delta.arguments:
                yield from self._items[-1].add(delta.arguments)

    def close(self) -> Iterator[Event]:
        """Ends the open item."""
        if self._open is not None:
            self._open = None
            yield from self._items[-1].end()

    def items(self, status: str) -> list[Json]:
        """All of them; `status` is the last one's."""
        last = len(self._items) - 1
        return [item.item(status if index == last else "completed") for index, item in enumerate(self._items)]

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._begin(kind, _TextItem(len(self._items), kind))
        yield from self._items[-1].add(text)

    def _begin(self, kind: str, item: _TextItem | _CallItem) -> Iterator[Event]:
        yield from self.close()
        self._items.append(item)
        self._open = kind
        yield from item.begin()
