"""The server's own OpenAPI description: GET /openapi.json, for the model that serves now."""

from __future__ import annotations

from typing import Any

import sparsefleet
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.arrow_body import CONTENT_TYPE
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.describe import fields_of

TEXT = {"type": "string"}
ERROR = {
    "type": "object",
    "properties": {"error": TEXT, "field": TEXT, "row": {"type": "integer"}, "version": TEXT},
    "required": ["error"],
}
REQUEST_ID = {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "integer"}]}


def openapi(bundle: Bundle, config: ServeConfig) -> dict[str, Any]:
    keys = _fields_of_keys(bundle)
    fields = [{**field, "keys": field["name"] in keys} for field in fields_of(bundle, config.allow_missing)]
    locked: list[dict[str, list[str]]] = [{"bearer": []}] if config.predict_token else []
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Predictions of a SparseFleet bundle",
            "version": sparsefleet.__version__,
            "description": f"Model version {bundle.name}.",
        },
        "paths": {
            "/v1/predict": {"post": {**_predict(fields, config, bundle), "security": locked}},
            "/v1/model": {"get": {**_get("What the model is, and what a request must hold."), "security": locked}},
            "/v1/reload": {"post": {**_reload(), "security": locked}},
            "/v1/rollback": {
                "post": {
                    "summary": "The version before answers again.",
                    "responses": _responses(_json({"type": "object"}), 400, 401, 403, 408, 409, 413, 503),
                    "security": locked,
                }
            },
            "/v1/canary": {"post": {**_beside("A share of the requests to another bundle.", True), "security": locked}},
            "/v1/shadow": {"post": {**_beside("Another bundle scores along.", False), "security": locked}},
            "/healthz": {"get": _get("Whether the server is alive.")},
            "/readyz": {
                "get": {
                    "summary": "Whether it can score: the bundle's warm-up scores as it should.",
                    "responses": {"200": _json({"type": "object"}), "503": _json({"type": "object"})},
                }
            },
            "/metrics": {
                "get": {
                    "summary": "Counters in Prometheus' text format.",
                    "responses": _responses({"description": "Done.", "content": {"text/plain": {"schema": TEXT}}}, 401),
                    "security": locked,
                }
            },
            "/openapi.json": {"get": {**_get("This document."), "security": locked}},
        },
        "components": {
            "schemas": {"Error": ERROR, "Row": _row(fields, config)},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _fields_of_keys(bundle: Bundle) -> frozenset[str]:
    """Fields in which a whole number is a feature key."""
    schema, inputs = bundle.schema, bundle.inputs
    ready = () if inputs is None else inputs.ready_slots
    slots = (slot for slot in schema.slots if slot.cross is None)
    return frozenset(slot.source for slot in slots if schema.takes_keys(slot) or slot.name in ready)


def _predict(fields: list[dict[str, Any]], config: ServeConfig, bundle: Bundle) -> dict[str, Any]:
    row = {"$ref": "#/components/schemas/Row"}
    part = {"type": "object", "properties": {field["name"]: _value(field) for field in fields}}
    values = {"type": "array", "prefixItems": [_value(field) for field in fields], "minItems": len(fields)}
    many = {"maxItems": config.max_rows}
    body = {
        "anyOf": [
            _object({"rows": {"type": "array", "items": {"anyOf": [row, values]}, **many}, "request_id": REQUEST_ID}),
            _object(
                {"context": part, "candidates": {"type": "array", "items": part, **many}, "request_id": REQUEST_ID}
            ),
        ]
    }
    scores = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}
    answer: dict[str, Any] = {
        "type": "object",
        "properties": {"version": TEXT, "scores": scores, "request_id": REQUEST_ID},
        "required": ["version", "scores"],
    }
    if labels := [name for name, _ in bundle.network.labels]:
        by_label = {"type": "object", "properties": dict.fromkeys(labels, scores), "required": labels}
        answer["properties"]["scores_by_label"] = by_label
        answer["required"].append("scores_by_label")
    headers = [
        ("x-timeout-ms", {"type": "integer", "minimum": 1, "maximum": 99999999}, "The time that the answer may take."),
        ("x-log", {"type": "string", "enum": ["yes", "no"]}, "no: the request is not written to the log of requests."),
        ("x-request-id", {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,100}$"}, "Sent back with the answer."),
    ]
    return {
        "summary": "The probability of a click for each row; of a model for several labels, that of each.",
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
            for name, schema, text in headers
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body},
                CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": _responses(_json(answer), 400, 401, 408, 413, 429, 503),
    }


def _reload() -> dict[str, Any]:
    body = {
        "type": "object",
        "properties": {"bundle": TEXT, "other_schema": {"type": "boolean"}},
        "required": ["bundle"],
        "additionalProperties": False,
    }
    return {
        "summary": "Take over another bundle.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(_json({"type": "object"}), 400, 401, 403, 408, 409, 413, 503),
    }


def _beside(summary: str, share: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"bundle": {"anyOf": [TEXT, {"type": "null"}]}}
    if share:
        properties["share"] = {"type": "number", "minimum": 0, "maximum": 1}
    body = {"type": "object", "properties": properties, "required": ["bundle"], "additionalProperties": False}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(_json({"type": "object"}), 400, 401, 403, 408, 409, 413, 503),
    }


def _row(fields: list[dict[str, Any]], config: ServeConfig) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field["name"]: _value(field) for field in fields},
        "required": [field["name"] for field in fields if field["required"]],
        "additionalProperties": config.allow_extra,
    }


def _value(field: dict[str, Any]) -> dict[str, Any]:
    if field["kind"] == "number":
        return {"anyOf": [{"type": "number"}, {"type": "string", "description": "A decimal number."}, {"type": "null"}]}
    # A feature key, or a number that is hashed as its decimal text.
    one: list[dict[str, Any]] = [{"type": "integer", "minimum": 0 if field["keys"] else -(2**63), "maximum": 2**64 - 1}]
    if field["takes"] != "ready":
        one.append({"type": "string", "maxLength": 65536})
    return {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}, "maxItems": 10_000}, {"type": "null"}]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    required = [name for name in properties if name != "request_id"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _get(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": _responses(_json({"type": "object"}), 401)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _responses(done: dict[str, Any], *refusals: int) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    why = {
        400: "The request does not fit the model; `field` and `row` say where.",
        401: "The token is missing or wrong.",
        403: "Versions are switched by others.",
        408: "The body did not come in time.",
        409: "The bundle is refused; the old one serves on.",
        413: "The body is too long.",
        429: "Too much waits already: try again after Retry-After seconds.",
        503: "Rows cannot be read, or the request's time was up: try again.",
    }
    return {"200": done, **{str(code): {"description": why[code], "content": error} for code in refusals}}
