"""The OpenAPI document: every route, what it takes and what it answers, made from the same models
that read the bodies. A test walks the application's own table, so that none is missing here."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway.auth import OPEN_PATHS
from services.gateway.errors import HTTP
from services.gateway.openai_schema import (
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Json,
    TokenizeBody,
)
from services.gateway.routes.settings import SettingsBody

_IDS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXT: Json = {"type": "string"}
_STOP: Json = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_PART: Json = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
}
_MESSAGE: Json = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"type": "string", "minLength": 1, "maxLength": 64},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}]},
    },
}
_MESSAGES: Json = {"type": "array", "items": _MESSAGE, "minItems": 1}
FORMS: dict[str, Json] = {
    "prompt": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _IDS, {"type": "array", "items": _IDS}]},
    "messages": _MESSAGES,
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}, {"type": "null"}]},
    "logit_bias": {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
            {"type": "null"},
        ]
    },
    "stop_token_ids": {"anyOf": [_IDS, {"type": "null"}]},
    "tokens": _IDS,
}
"""Fields whose form is checked by hand, in `checks.py`."""
BODIES: dict[tuple[str, str], type[BaseModel]] = {
    ("/v1/completions", "post"): CompletionBody,
    ("/v1/chat/completions", "post"): ChatBody,
    ("/tokenize", "post"): TokenizeBody,
    ("/detokenize", "post"): DetokenizeBody,
    ("/v1/settings", "patch"): SettingsBody,
}
STREAMS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/requests/{id}/events"})
TEXTS = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
HEADERS = {
    ("/v1/completions", "post"): ("Idempotency-Key", "X-Client-Request-Id"),
    ("/v1/chat/completions", "post"): ("Idempotency-Key", "X-Client-Request-Id"),
    ("/v1/requests/{id}/events", "get"): ("Last-Event-ID",),
}
QUERIES = {"/v1/iterations": ("engine", "after")}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": {"enum": sorted({one.type for one in HTTP.values()})},
                "param": {"type": ["string", "null"]},
                "code": {"enum": sorted(code.value for code in HTTP)},
            },
        }
    },
}


def document(routes: list[tuple[str, str, str]], version: str) -> Json:
    """The document of routes given as (path, method, what it does)."""
    paths: dict[str, Json] = {}
    for path, method, summary in routes:
        paths.setdefault(path, {})[method] = _operation(path, method, summary)
    bodies = [(kind, "validation") for kind in BODIES.values()]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    for schema in schemas["$defs"].values():
        _fill_forms(schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "orca", "version": version},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _fill_forms(schema: Json) -> None:
    for name, field in schema.get("properties", {}).items():
        if name in FORMS and "type" not in field and "anyOf" not in field:
            field.update(FORMS[name])


def _operation(path: str, method: str, summary: str) -> Json:
    operation: Json = {"summary": summary, "responses": _responses(path, method)}
    parameters = [_parameter(part[1:-1], "path") for part in path.split("/") if part.startswith("{")]
    parameters += [_parameter(name, "header") for name in HEADERS.get((path, method), ())]
    parameters += [_parameter(name, "query") for name in QUERIES.get(path, ())]
    if parameters:
        operation["parameters"] = parameters
    if body := BODIES.get((path, method)):
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if path in OPEN_PATHS:
        operation["security"] = []
    return operation


def _parameter(name: str, place: str) -> Json:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "schema": {"type": "string", "minLength": 1},
    }


def _responses(path: str, method: str) -> Json:
    content: dict[str, Any] = {}
    if path in TEXTS:
        content["text/plain"] = {"schema": _TEXT}
    elif path != "/v1/requests/{id}/events":
        content["application/json"] = {"schema": {"type": "object"}}
    if path in STREAMS:
        content["text/event-stream"] = {"schema": _TEXT}
    good: Json = {"200": {"description": "the answer", "content": content}}
    if method == "delete":
        good = {"204": {"description": "done"}}
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {**good, "default": {"description": "the refusal", "content": {"application/json": error}}}
