"""All that clients of the session API rely on, a line each. As a program: adds what is new to a file of such lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from sessile.server.proto import session_pb2 as pb

_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(number, int)
}


def surface() -> list[str]:
    """The methods, fields and enum values, in order."""
    return sorted(_lines())


def _lines() -> Iterator[str]:
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            asked = "stream " * method.client_streaming + method.input_type.name
            answered = "stream " * method.server_streaming + method.output_type.name
            yield f"{method.name}: {asked} -> {answered}"
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        yield from _fields(message)
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        yield from _values(enum)


def _fields(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        yield f"{message.full_name.removeprefix('sessile.v1.')}.{field.name} = {field.number}: {_kind(field)}"
    for inner in message.nested_types:
        yield from _fields(inner)


def _kind(field: FieldDescriptor) -> str:
    target = field.message_type or field.enum_type
    kind = target.full_name.removeprefix("sessile.v1.") if target is not None else _TYPES[field.type]
    if field.is_repeated:
        return f"repeated {kind}"
    if field.containing_oneof is None:
        return kind
    optional = field.containing_oneof.name == f"_{field.name}"
    return f"optional {kind}" if optional else f"{kind} in {field.containing_oneof.name}"


def _values(enum: EnumDescriptor) -> Iterator[str]:
    for value in enum.values:
        yield f"{value.name} = {value.number} of {enum.name}"


def main(path: Path) -> None:
    """Add to the file what is new; nothing is ever taken out."""
    kept = path.read_text().splitlines() if path.exists() else []
    path.write_text("".join(f"{line}\n" for line in sorted({*kept, *surface()})))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
