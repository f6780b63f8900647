"""JSON Schemas made from a seed, each with an end: each answer that one accepts has a few hundred bytes."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("red", "green", "blue", "naïve", "你好", 'say "hi"', "back\\slash", "🎉", "a b", "x/y")
_NAMES = ("name", "age", "tags", "ok", "größe", "unit price", "id", "next", "note", "kind")
_PATTERNS = ("^[a-z]{1,6}$", r"^\d{3}-\d{2}$", "^(on|off)$", "^[A-Z][a-z]{0,5}$", r"^v\d{1,2}\.\d{1,2}$")


def make_schemas(count: int, seed: int = 0) -> list[Schema]:
    """Objects, since that is what clients ask for; the first of each eight is another value."""
    rng = random.Random(seed)
    return [_top(rng, index) for index in range(count)]


def _top(rng: random.Random, index: int) -> Schema:
    if index % 8 == 0:
        return _value(rng, 2)
    schema = _object(rng, 2)
    if index % 4 == 1:
        schema["$defs"] = {"part": _value(rng, 1)}
        schema["properties"]["part"] = {"$ref": "#/$defs/part", "description": "one of these"}
        schema["properties"]["parts"] = {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2}
        schema["required"].append("part")
    return schema


def _value(rng: random.Random, depth: int) -> Schema:
    leaves = [_string, _pattern, _integer, _number, _choice, _const, _flag, _nullable]
    nested = [_object, _array, _tuple, _any_of, _one_of]
    if depth > 0 and rng.random() < 0.6:
        return rng.choice(nested)(rng, depth - 1)
    return rng.choice(leaves)(rng)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(1, 3))
    return {
        "type": "object",
        "title": "made up",
        "properties": {name: _value(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 1)
    return {"type": "array", "items": _value(rng, depth), "minItems": least, "maxItems": least + rng.randint(1, 2)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    parts = [_value(rng, depth) for _ in range(2)]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": 2, "maxItems": 2}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth), _value(rng, depth), {"type": "null"}]}


def _one_of(rng: random.Random, depth: int) -> Schema:
    return {"oneOf": [_integer(rng), _string(rng), _object(rng, depth)]}


def _string(rng: random.Random) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(1, 10)}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(_PATTERNS)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-2000, 2000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if rng.random() < 0.3:
        schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 50)}
    return schema


def _number(rng: random.Random) -> Schema:
    low = rng.randint(-50, 50) / 4
    return {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 40) / 8}


def _choice(rng: random.Random) -> Schema:
    if rng.random() < 0.5:
        return {"type": "string", "enum": rng.sample(_WORDS, 3)}
    return {"enum": [rng.choice(_WORDS), rng.randint(-9, 9), None, True, [1, "two"], {"three": 3.5}]}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice([*_WORDS, 17, -0.25, False, None, ["fixed", {"deep": []}]])}


def _flag(rng: random.Random) -> Schema:
    return {"type": "boolean"}


def _nullable(rng: random.Random) -> Schema:
    return {"type": ["string", "null"], "maxLength": rng.randint(1, 8)}
