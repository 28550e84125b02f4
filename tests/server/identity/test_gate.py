"""Who is let in, as whom, and for what."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from set_clock import SetClock

from sessile.server.identity import gate as gate_module
from sessile.server.identity.api_key import ApiKey, Scope, new_key
from sessile.server.identity.gate import ANYBODY, Gate
from sessile.server.identity.key_file import KeyFile
from sessile.sessions.errors import ConfigError, PermissionDenied, Unauthenticated


def add_key(file: KeyFile, tenant: str = "acme", scopes: tuple[Scope, ...] = (Scope.INFER,)) -> tuple[str, ApiKey]:
    text, key = new_key(tenant, scopes, "", 1.0)
    file.change(lambda present: [*present, key])
    return text, key


def revoke(file: KeyFile, key: ApiKey) -> None:
    import msgspec

    file.change(lambda present: [msgspec.structs.replace(k, revoked_at=2.0) if k == key else k for k in present])


def test_without_keys_anybody_is_let_in(tmp_path: Path) -> None:
    gate = Gate(KeyFile(tmp_path), None, SetClock())
    assert gate.is_open
    assert gate.identify(None, None) == ANYBODY
    assert gate.identify("Bearer whatever", None).tenant_for("acme") == "acme"


def test_a_key_is_let_in_by_either_header_and_is_its_tenant(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    text, key = add_key(file)
    gate = Gate(file, None, SetClock())
    for identity in (
        gate.identify(f"Bearer {text}", None),
        gate.identify(f"bearer  {text}", None),
        gate.identify(None, text),
    ):
        assert identity.key_id == key.key_id
        assert identity.tenant_for("") == identity.tenant_for("acme") == "acme"
        with pytest.raises(PermissionDenied):
            identity.tenant_for("other")


@pytest.mark.parametrize("make", [
    lambda text: None,
    lambda text: "",
    lambda text: text[:-1],
    lambda text: text + "x",
    lambda text: text[:-1] + ("a" if text[-1] != "a" else "b"),
    lambda text: text.upper(),
    lambda text: "sk-sessile-000000000000-" + text[-43:],
    lambda text: "\N{SNOWMAN}" * 20,
])  # fmt: skip
def test_anything_else_is_not(tmp_path: Path, make) -> None:
    file = KeyFile(tmp_path)
    text, _ = add_key(file)
    gate = Gate(file, None, SetClock())
    given = make(text)
    with pytest.raises(Unauthenticated) as refused:
        gate.identify(None if given is None else f"Bearer {given}", None)
    assert refused.value.remedy and text not in str(refused.value)
    with pytest.raises(Unauthenticated):
        gate.identify(f"Basic {text}", None)


def test_scopes(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    gate = Gate(file, None, SetClock())
    infer, metrics, admin = (add_key(file, scopes=(scope,))[0] for scope in (Scope.INFER, Scope.METRICS, Scope.ADMIN))
    gate = Gate(file, None, SetClock())
    gate.identify(None, infer).require(Scope.INFER)
    with pytest.raises(PermissionDenied, match="metrics scope"):
        gate.identify(None, infer).require(Scope.METRICS)
    with pytest.raises(PermissionDenied, match="infer scope"):
        gate.identify(None, metrics).require(Scope.INFER)
    for scope in Scope:
        gate.identify(None, admin).require(scope)
    assert gate.identify(None, admin).tenant_for("other") == "other"
    assert gate.identify(None, admin).tenant_for("") == "acme"


def test_a_running_gate_takes_over_new_and_revoked_keys_within_a_second(tmp_path: Path) -> None:
    clock, file = SetClock(), KeyFile(tmp_path)
    gate = Gate(file, None, clock)
    assert gate.is_open
    text, key = add_key(file)
    clock.now += gate_module.REREAD_S
    assert not gate.is_open
    gate.identify(None, text)
    revoke(file, key)
    clock.now += gate_module.REREAD_S
    with pytest.raises(Unauthenticated):
        gate.identify(None, text)
    assert not gate.is_open, "revoking the last key opens nothing"
    file.path.unlink()
    clock.now += gate_module.REREAD_S
    assert not gate.is_open, "nor does removing the file"


def test_a_damaged_file_changes_nothing_for_a_running_gate_and_stops_a_starting_one(tmp_path: Path) -> None:
    clock, file = SetClock(), KeyFile(tmp_path)
    text, _ = add_key(file)
    gate = Gate(file, None, clock)
    file.path.write_bytes(b'{"version": 1, "keys": [')
    clock.now += gate_module.REREAD_S
    gate.identify(None, text)
    with pytest.raises(ConfigError, match=r"keys\.json") as refused:
        Gate(file, None, clock)
    assert refused.value.remedy


def test_the_fixed_key_has_all_scopes_and_any_tenant(tmp_path: Path) -> None:
    gate = Gate(KeyFile(tmp_path), "a-key-from-the-environment", SetClock())
    assert not gate.is_open
    identity = gate.identify("Bearer a-key-from-the-environment", None)
    assert identity.tenant_for("x") == "x"
    for scope in Scope:
        identity.require(scope)
    with pytest.raises(Unauthenticated):
        gate.identify("Bearer a-key-from-the-environmenu", None)


def test_what_is_kept_is_no_key_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    text, key = add_key(file)
    kept = file.path.read_text()
    assert text not in kept and text[-43:] not in kept
    assert json.loads(kept)["keys"][0]["key_id"] == key.key_id
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_ids_and_texts_do_not_repeat() -> None:
    made = [new_key("t", (Scope.INFER,), "", 0.0) for _ in range(200)]
    assert len({text for text, _ in made}) == len({key.key_id for _, key in made}) == 200


def test_a_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not by a clock, which is noisy, but by what does the comparing: always the same function, once a key."""
    compared: list[tuple[str, str]] = []
    from sessile.server.identity import api_key

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(api_key.hmac, "compare_digest", compare)
    file = KeyFile(tmp_path)
    text, _ = add_key(file)
    gate = Gate(file, None, SetClock())
    gate.identify(None, text)
    for wrong in (text[:-1] + "_", "sk-sessile-000000000000-" + text[-43:], "no key at all"):
        with pytest.raises(Unauthenticated):
            gate.identify(None, wrong)
    assert len(compared) == 4
    assert all(len(left) == len(right) == 64 for left, right in compared), "digests of one length, never the texts"
