"""What is told of bytes that are no JSON costs no more than the bytes."""

from __future__ import annotations

import tracemalloc

from sessile.sessions.malformed_json import malformed


def test_a_long_name_is_not_written_down_for_each_item_in_it() -> None:
    """A body of 100 KB would take 200 MB, one of 2 MB all that a machine has."""
    name = "n" * 100_000
    sent = b'{"metadata": {"%s": [%s NaN]}}' % (name.encode(), b"0," * 2000)
    tracemalloc.start()
    try:
        error = malformed(sent, "as the decoder says it")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(sent)
    assert error.field is not None
    assert error.field.startswith("metadata.nnn")
    assert error.field.endswith("[2000]")
    assert len(str(error)) < 1000, "nor is it told as a whole"


def test_places_inside_of_lists_and_objects() -> None:
    for sent, field in {
        b'{"a": [0, {"b": NaN}]}': "a[1].b",
        b"[[1], [Infinity]]": "[1][0]",
        b"-Infinity": None,
    }.items():
        error = malformed(sent, "")
        assert error.field == field
        assert str(error).startswith(f"{field or 'the body'} is ")
