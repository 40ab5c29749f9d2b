"""The columns of Kafka's connector: what a query may read, and what a frame to be written may have."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from commitlog.errors import ConfigError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_MAY_BE_NULL = ("key", "value", "headers")


class Field(NamedTuple):
    """A column that is asked for, and whether Spark was told that it may have nulls."""

    name: str
    nullable: bool = True


def full_schema(*, headers: bool) -> StructType:
    """Return all columns; headers only where they are asked for.

    Spark is told which of them are never null: it looks at each value once less then.
    """
    names = [name for name in _TYPES if headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name], name in _MAY_BE_NULL) for name in names])


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """Return the columns of a query's schema, any of ours in any order; ConfigError for another."""
    if not schema.fields:  # Arrow batches without columns have no rows: nothing would be counted
        raise ConfigError("schema", "struct<>", f"must have a column; there are {', '.join(_TYPES)}")
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise ConfigError("schema", field.name, f"no such column; there are {', '.join(_TYPES)}")
        if field.dataType != expected:
            given = f"{field.name} {field.dataType.simpleString()}"
            raise ConfigError("schema", given, f"{field.name} is {expected.simpleString()}")
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigError("schema", f"{field.name} NOT NULL", f"{field.name} may be null")
        if schema.names.count(field.name) > 1:
            raise ConfigError("schema", field.name, "must not be there twice")
    return tuple(Field(field.name, field.nullable) for field in schema.fields)


# --- writing -------------------------------------------------------------------------------------

_IGNORED = ("offset", "timestamptype")  # the log gives them out; a frame that was read from one has them
_TEXT = ("key", "value")


def check_sink(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Check the columns of a frame that is to be written, to this topic or to those of a column.

    Returns their names as we call them; Spark's have no case.
    """
    names = tuple(field.name.lower() for field in schema.fields)
    for field, name in zip(schema.fields, names, strict=True):
        if names.count(name) > 1:
            raise ConfigError("schema", field.name, "must not be there twice")
        if name not in _IGNORED:
            _check_type(name, field.dataType)
    if "value" not in names:
        raise ConfigError("schema", schema.simpleString(), "must have a column value, a string or binary")
    if topic is None and "topic" not in names:
        raise ConfigError("topic", None, "must be given, or the frame must have a column topic")
    return names


def _check_type(name: str, given: DataType) -> None:
    expected = _TYPES.get(name)
    if expected is None:
        raise ConfigError(
            "schema",
            name,
            "no such column in a log; there are value, key, headers, topic, partition and timestamp",
        )
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
