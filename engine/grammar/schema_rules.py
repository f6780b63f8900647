"""JSON Schemas whose answers xgrammar would not hold to: it leaves out what it cannot enforce, some of it silently.

The rules follow from trying each keyword with an instance that breaks it (xgrammar 0.2.9). What is refused here is
refused with its place and what to write instead; what passes is enforced, or is an annotation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.grammar.regex_rules import problem_with_regex

_NOT_ENFORCED = frozenset(
    (
        "contains",
        "minContains",
        "maxContains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "if",
        "then",
        "else",
        "not",
        "unevaluatedItems",
        "additionalItems",
        "$dynamicRef",
        "$recursiveRef",
        "$anchor",
        "$dynamicAnchor",
    )
)
_BRANCHES = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$defs",
        "definitions",
        "$schema",
        "$id",
    )
)
_TYPED = frozenset(
    (
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedProperties",
    )
)
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def problem_with_schema(schema: Any, path: str = "#") -> str | None:
    """Where and why `schema` would not be enforced, or None. What is no schema at all is the compiler's business."""
    if not isinstance(schema, dict):
        return None
    problem = (
        _unknown_to_the_compiler(schema)
        or _branch_problem(schema)
        or _type_problem(schema)
        or _string_problem(schema)
        or _object_problem(schema)
    )
    if problem:
        return f"{path}: {problem}"
    return next(filter(None, (problem_with_schema(part, f"{path}/{name}") for name, part in _parts(schema))), None)


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("items", "additionalProperties", "unevaluatedProperties", "propertyNames"):
        if key in schema:
            yield key, schema[key]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{index}", part) for index, part in enumerate(schema[key]))
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(schema.get(key), dict):
            yield from ((f"{key}/{name}", part) for name, part in schema[key].items())


def _types(schema: dict[str, Any]) -> list[Any]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _unknown_to_the_compiler(schema: dict[str, Any]) -> str | None:
    for key in schema:
        if key in _NOT_ENFORCED or (key == "uniqueItems" and schema[key]):
            return f"got {key}, which cannot be enforced; drop it"
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return f"got $ref {reference!r}, expected '#' or one that starts with '#/'"
    if "multipleOf" in schema and _types(schema) != ["integer"]:
        return "got multipleOf, which is enforced for the type integer alone; change the type or drop it"
    return None


def _branch_problem(schema: dict[str, Any]) -> str | None:
    branches = [key for key in _BRANCHES if key in schema]
    if not branches:
        return None
    key, value = branches[0], schema[branches[0]]
    beside = [other for other in schema if other not in _ANNOTATIONS and other != key]
    if key in ("enum", "const") and beside == ["type"]:
        values = value if key == "enum" else [value]
        wrong = [item for item in values if not _has_type(item, _types(schema))] if isinstance(values, list) else []
        return f"got {wrong[0]!r} in {key}, expected type {schema['type']!r}; change either" if wrong else None
    if beside:
        return f"got {beside[0]} beside {key}, where it would be left out; move it into the schema of {key}"
    if key == "allOf" and isinstance(value, list) and len(value) != 1:
        return f"got allOf with {len(value)} schemas, expected 1; merge them"
    if key == "oneOf" and not _disjoint(value):
        return "got oneOf with schemas that may overlap, expected a different type in each; write anyOf"
    return None


def _has_type(value: Any, types: list[Any]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _PYTHON_TYPES.get(name, ())) for name in types)


def _disjoint(schemas: Any) -> bool:
    """Whether a value can match at most one, by type alone."""
    if not isinstance(schemas, list) or not all(isinstance(schema, dict) and "type" in schema for schema in schemas):
        return False
    types = ["number" if name == "integer" else name for schema in schemas for name in map(str, set(_types(schema)))]
    return len(types) == len(set(types))


def _type_problem(schema: dict[str, Any]) -> str | None:
    typed = [key for key in schema if key in _TYPED]
    if typed and "type" not in schema and not any(key in schema for key in _BRANCHES):
        return f"got {typed[0]} without a type, so that other types would be free; add the type"
    return None


def _string_problem(schema: dict[str, Any]) -> str | None:
    rules = [key for key in ("pattern", "format") if key in schema]
    rules += [key for key in ("minLength", "maxLength") if key in schema][:1]
    if len(rules) > 1:
        return f"got {rules[1]} beside {rules[0]}, where it would be left out; write both as one pattern"
    patterns = [schema["pattern"]] if "pattern" in schema else []
    if isinstance(schema.get("patternProperties"), dict):
        patterns += schema["patternProperties"]
    for pattern in patterns:
        if isinstance(pattern, str) and (problem := problem_with_regex(pattern)):
            return f"pattern {pattern!r}: {problem}"
    return None


def _object_problem(schema: dict[str, Any]) -> str | None:
    """Open keys can repeat each other, or spell a listed one with an escape ("\\u0061" is "a"): nothing may differ."""
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in properties]
    if missing:
        return f"got {missing[0]!r} in required but not in properties; add it there"
    extra = [key for key in ("additionalProperties", "unevaluatedProperties") if schema.get(key, False) is not False]
    open_keys = [*extra, *(key for key in ("patternProperties", "propertyNames") if key in schema)]
    if open_keys and properties:
        return f"got {open_keys[0]} beside properties, which cannot be kept apart; drop either"
    if "patternProperties" in schema and len(open_keys) > 1:
        return f"got {open_keys[0]} beside patternProperties, which cannot be kept apart; drop either"
    least = schema.get("minProperties", 0)
    if open_keys and isinstance(least, int | float) and least > 1:
        return f"got minProperties {least} for keys that may repeat, expected at most 1; list them in properties"
    return None
