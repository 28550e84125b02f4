"""Keys name a prefix, are the same in every process, and never meet where they should not."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.sessions.cache.keys import KEY_BYTES, BlockKeys, KVFingerprint
from sessile.sessions.cache.token_key import pack_tokens

ROOT = Path(__file__).resolve().parents[3]
FINGERPRINT = KVFingerprint("w" * 64, "bfloat16", "group16-pair2", 4, 4096, "neox theta=100000")
KEYS = BlockKeys(FINGERPRINT)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def all_keys(keys: BlockKeys, salt: str, tokens: list[int]) -> list[bytes]:
    """The keys of a sequence's blocks, the half-full last one included."""
    packed, size = pack_tokens(tokens), keys.fingerprint.block_size
    chain = keys.chain(keys.root(salt), packed)
    rest = packed[len(chain) * size * 4 :]
    return chain + ([keys.tail(chain[-1] if chain else keys.root(salt), rest)] if rest else [])


def test_known_key():
    """Written down once: a change of this value makes everything that is stored anywhere unreadable."""
    keys = all_keys(KEYS, "tenant", [1, 2, 3, 4, 5])
    assert [len(key) for key in keys] == [KEY_BYTES, KEY_BYTES]
    assert [key.hex()[:16] for key in keys] == ["da75dcd045dc8642", "4ba471c75790b6fe"]


def test_another_process_makes_the_same_keys():
    """Unlike Python's ``hash``, whose seed differs in each process."""
    program = (
        "from sessile.sessions.cache.keys import *; from sessile.sessions.cache.token_key import pack_tokens;"
        f"k = BlockKeys(KVFingerprint{dataclasses.astuple(FINGERPRINT)!r});"
        "print(k.chain(k.root('tenant'), pack_tokens(range(40)))[-1].hex())"
    )
    expected = KEYS.chain(KEYS.root("tenant"), pack_tokens(range(40)))[-1].hex()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


@given(left=TOKENS, right=TOKENS)
def test_a_key_names_the_whole_prefix(left: list[int], right: list[int]):
    a, b = all_keys(KEYS, "", left), all_keys(KEYS, "", right)
    size = FINGERPRINT.block_size
    for i, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        assert (mine == theirs) == (left[: (i + 1) * size] == right[: (i + 1) * size])


@given(tokens=TOKENS, cut=st.integers(0, 20))
def test_a_chain_extends(tokens: list[int], cut: int):
    packed, size = pack_tokens(tokens), FINGERPRINT.block_size * 4
    whole = KEYS.chain(KEYS.root("s"), packed)
    first = KEYS.chain(KEYS.root("s"), packed[: cut * 4])
    rest = KEYS.chain(first[-1] if first else KEYS.root("s"), packed[len(first) * size :])
    assert first + rest == whole


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(KVFingerprint)])
def test_each_field_of_the_fingerprint_changes_all_keys(field: str):
    value = getattr(FINGERPRINT, field)
    other = BlockKeys(dataclasses.replace(FINGERPRINT, **{field: value + (1 if isinstance(value, int) else "x")}))
    assert other.root("") != KEYS.root("")
    assert other.fingerprint.digest() != FINGERPRINT.digest()


def test_fields_do_not_run_into_each_other():
    a = dataclasses.replace(FINGERPRINT, dtype="bf", layout="16x")
    b = dataclasses.replace(FINGERPRINT, dtype="bf16", layout="x")
    assert a.digest() != b.digest()
    assert KEYS.root("a") != KEYS.root("a\0") != KEYS.root("")


def test_a_tail_is_never_a_whole_block():
    root = KEYS.root("")
    tails = {KEYS.tail(root, pack_tokens([0] * n)) for n in range(1, 4)}
    assert len(tails) == 3
    assert KEYS.chain(root, pack_tokens([0] * 4))[0] not in tails
    for wrong in ([], [0] * 4):
        with pytest.raises(ValueError, match="a tail has 1 to 3 tokens"):
            KEYS.tail(root, pack_tokens(wrong))
