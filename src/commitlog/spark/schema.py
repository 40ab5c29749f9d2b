"""The columns of Kafka's connector: those that a query may read, and those that a written frame may have."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import types
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from commitlog.errors import ConfigError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_MAY_BE_NULL = ("key", "value", "headers")


class Field(NamedTuple):
    """A requested column, and whether Spark expects nulls in it."""

    name: str
    nullable: bool = True


def full_schema(*, headers: bool) -> StructType:
    """Return all columns, with or without headers. A column declared not null saves Spark checks."""
    names = [name for name in _TYPES if headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name], name in _MAY_BE_NULL) for name in names])


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """Return the columns of a query's schema, in its order; ConfigError for unknown columns or types."""
    if not schema.fields:  # Arrow batches without columns have no rows: a count would be 0
        raise ConfigError("schema", "struct<>", f"must have a column; the columns are {', '.join(_TYPES)}")
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise ConfigError("schema", field.name, f"no such column; the columns are {', '.join(_TYPES)}")
        if field.dataType != expected:
            given = f"{field.name} {field.dataType.simpleString()}"
            raise ConfigError("schema", given, f"{field.name} is {expected.simpleString()}")
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigError("schema", f"{field.name} NOT NULL", f"{field.name} may be null")
        if schema.names.count(field.name) > 1:
            raise ConfigError("schema", field.name, "must not occur twice")
    return tuple(Field(field.name, field.nullable) for field in schema.fields)


# --- writing -------------------------------------------------------------------------------------

_IGNORED = ("offset", "timestamptype")  # set by the log; a frame that was read from a log has them
_TEXT = ("key", "value")


def check_sink(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Check the columns of a frame to write; returns their names in lower case, as Spark ignores case.

    Without `topic`, the frame needs a column topic.
    """
    names = tuple(field.name.lower() for field in schema.fields)
    if "value" not in names:
        how = "to_json(struct(*)) AS value makes one of all columns"
        raise ConfigError(
            "schema", schema.simpleString(), f"must have a column value, a string or binary; {how}"
        )
    for field, name in zip(schema.fields, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError("schema", field.name, "must not occur twice")
        if name not in _IGNORED:
            _check_type(name, field.dataType)
    if topic is None and "topic" not in names:
        raise ConfigError("topic", None, "must be given, or the frame must have a column topic")
    return names


def _check_type(name: str, given: DataType) -> None:
    expected = _TYPES.get(name)
    if expected is None:
        allowed = "value, key, headers, topic, partition and timestamp"
        raise ConfigError("schema", name, f"no such column in a log; the columns are {allowed}")
    if isinstance(given, StringType | BinaryType) and name in _TEXT:
        return
    if type(given) is not type(expected) or (name == "headers" and not _are_headers(given)):
        allowed = "string or binary" if name in _TEXT else expected.simpleString()
        raise ConfigError("schema", f"{name} {given.simpleString()}", f"{name} must be {allowed}")


def _are_headers(given: ArrayType) -> bool:
    pair = given.elementType
    if not isinstance(pair, StructType) or [field.name for field in pair.fields] != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, StringType) and isinstance(pair["value"].dataType, BinaryType)
