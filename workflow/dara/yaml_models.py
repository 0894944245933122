"""Validation of YAML files with pydantic models; every error names the file, the key and the correct form."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from dara.specs import SOURCES_OF_TASK, Model


class ConfigurationError(ValueError):
    """A mistake in a configuration file; the message names the file, the key and the correct form."""


class _UniqueKeyLoader(yaml.CSafeLoader):
    """A YAML loader that raises an error for a repeated key, instead of silently using the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        own_keys = [key_node for key_node, _ in node.value if key_node.tag != "tag:yaml.org,2002:merge"]
        for key_node in own_keys:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. ConfigurationError, with file and line, if it is not one."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: the file does not exist") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigurationError(
            f"{path}, line {mark.line + 1 if mark else '?'}: not valid YAML: {error.problem}"
        ) from None
    except yaml.YAMLError as error:  # a character that no YAML has
        raise ConfigurationError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigurationError(f"{path}: must be a mapping of keys to values, such as `preset: laptop`")
    return content


def validate(model: type[Model], values: Any, files: list[Path], prefix: tuple[str, ...] = ()) -> Any:
    """Return `values` as `model`; a ConfigurationError lists every mistake with file, key and the nearest known key.

    prefix: the keys in the file above `values`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, values, item, files, prefix) for item in error.errors()]
        raise ConfigurationError("\n".join(dict.fromkeys(lines))) from None


def _explain(model: type[BaseModel], values: Any, item: Any, files: list[Path], prefix: tuple = ()) -> str:
    """Return one mistake that pydantic found, as a sentence."""
    parts = item["loc"]
    location = tuple(part for above, part in zip((None, *parts), parts, strict=False) if not _is_union_tag(above, part))
    key = ".".join(str(part) for part in (*prefix, *location)) or "the file"
    given = () if item["type"] == "missing" or parts[-1:] == ("[key]",) else (item.get("input"),)
    where = f"{origin((*prefix, *location), files, *given)}: {key}"
    if item["type"] == "extra_forbidden":
        allowed = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), allowed, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{where}: unknown key{hint} (allowed here: {', '.join(allowed)})"
    if item["type"] == "missing":
        return f"{where}: missing; this key is required"
    message = item["msg"].removeprefix("Value error, ")
    given = item.get("input")
    shown = f" (given: {given!r})" if not isinstance(given, dict | list | BaseModel) else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"


UNION_TAGS = {"str", "tuple", "made_model", "hub_model", "known_data", "own_data"}
SOURCES = {source for sources in SOURCES_OF_TASK.values() for source in sources}


def _is_union_tag(above: Any, part: Any) -> bool:
    """Return whether a part of a location is pydantic's tag of a union (the kind of a value), not a key."""
    return isinstance(part, str) and (
        "[" in part or part in UNION_TAGS or (above in ("data", "known_data") and part in SOURCES)
    )


COMMAND_LINE = "--config on the command line"
ABSENT = object()


def origin(location: tuple, files: list[Path], given: Any = ABSENT) -> str:
    """Return the file that set this key: the last one with the key, or with the longest part of its path.

    given: the current value; if no file has it, the command line set it.
    """
    best, depth, value = (files[-1] if files else None), 0, ABSENT
    for path in files:
        reached, found = _reach(read_yaml(path), location)
        if reached >= max(depth, 1):
            best, depth, value = path, reached, found
    elsewhere = given is not ABSENT and (depth < len(location) or _differs(value, given))
    return COMMAND_LINE if elsewhere or best is None else str(best)


def _differs(value: Any, given: Any) -> bool:
    scalars = not isinstance(value, dict | list) and not isinstance(given, dict | list)
    return scalars and str(value) != str(given)


def _reach(values: Any, location: tuple) -> tuple[int, Any]:
    """Return how many keys of the path exist, and the value at its end."""
    for count, part in enumerate(location):
        inside = values[part] if isinstance(values, dict) and part in values else ABSENT
        if isinstance(values, list) and isinstance(part, int) and part < len(values):
            inside = values[part]
        if inside is ABSENT:
            return count, ABSENT
        values = inside
    return len(location), values


def _fields_at(model: type[BaseModel], location: tuple) -> list[str]:
    """Return the names of the keys that are allowed at a place inside `model`."""
    schema = TypeAdapter(model).json_schema()
    definitions, node = schema.get("$defs", {}), schema
    for part in location:
        node = _resolve(node, definitions)
        inside = node.get("properties", {}).get(part) if isinstance(part, str) else node.get("items")
        patterns = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
        node = inside if inside is not None else next((schema for schema in patterns if schema), {})
    return list(_resolve(node, definitions).get("properties", {}))


def _resolve(node: dict, definitions: dict) -> dict:
    for option in node.get("anyOf", node.get("oneOf", node.get("allOf", []))):
        if "$ref" in option:
            node = option
    return definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
