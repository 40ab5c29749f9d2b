"""The columns of the source: those of Kafka's connector, all or as many as a query's schema names."""

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
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None:
            raise ConfigError("schema", field.name, f"no such column; there are {', '.join(_TYPES)}")
        if field.dataType != expected:
            given = f"{field.name} {field.dataType.simpleString()}"
            raise ConfigError("schema", given, f"{field.name} is {expected.simpleString()}")
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigError("schema", f"{field.name} NOT NULL", f"{field.name} may be null")
    return tuple(Field(field.name, field.nullable) for field in schema.fields)
