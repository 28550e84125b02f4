"""Changes of protobuf messages: fields set to extremes, dropped, doubled; and of their bytes on the wire."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_TEXTS = (
    "",
    "x",
    "\x00",
    "é🙂",
    "a" * 3000,
    "<|im_end|>",
    "ses_" + "0" * 32,
    '{"a": 1}',
    "{",
    "[[[[",
    "(a+)+$",
    "\u2028",
)
_INTEGERS = (0, 1, -1, 2, 7, 127, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32 - 1, 2**64 - 1)
_REALS = (0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), 5e-324)


def changed(message: Message, rng: random.Random) -> Message:
    """A copy with one to three fields, at any depth, put out of order."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng.choice(_parts(copy)), rng)
    return copy


def _parts(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for part in [value] if isinstance(value, Message) else list(value):
                found += _parts(part)
    return found


def _change(message: Message, rng: random.Random) -> None:
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = rng.choice(fields)
    if rng.random() < 0.2:
        message.ClearField(field.name)
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    value = getattr(message, field.name)
    if hasattr(value, "append") or hasattr(value, "add"):
        for _ in range(rng.choice((1, 2, 300))):
            value.add() if field.type == FieldDescriptor.TYPE_MESSAGE else value.append(_scalar(field, rng))
    elif isinstance(value, Message):
        value.SetInParent()
    else:
        setattr(message, field.name, _scalar(field, rng))


def _scalar(field: Any, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = rng.choice(_TEXTS)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice(_REALS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 99))
        case kind:
            low, high = {
                FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
                FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
                FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
                FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
            }[kind]
            return rng.choice([number for number in _INTEGERS if low <= number <= high])
