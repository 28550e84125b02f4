"""The configuration: every key by file, variable and flag; errors that name the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.config import ServerConfig, all_settings, hand_down, load_config
from sessile.server.settings import Setting, shown_size
from sessile.sessions.errors import ConfigError

SETTINGS = all_settings()


def example(setting: Setting) -> tuple[str, str, object]:
    """A value other than the default: as text, as TOML, and as the configuration holds it."""
    kind = setting.type_name
    if "|" in kind:
        choice = next(word for word in kind.split("|") if word != setting.default)
        return choice, f'"{choice}"', choice
    match kind:
        case "bool":
            value = not setting.default
            return str(value).lower(), str(value).lower(), value
        case "size":
            return "3MiB", '"3MiB"', 3 * 2**20
        case "int":
            return "224", "224", 224  # a multiple of 16, for block_size
        case "float":
            return "0.75", "0.75", 0.75
        case "list":
            return "a=1, b=2", '["a=1", "b=2"]', ("a=1", "b=2")
        case "path":
            return "/somewhere", '"/somewhere"', Path("/somewhere")
        case _:
            return "word", '"word"', "word"


def value_of(config: ServerConfig, setting: Setting) -> object:
    return getattr(getattr(config, setting.table), setting.key)


def write(folder: Path, text: str) -> Path:
    path = folder / "sessile.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_key_by_flag_variable_and_file(setting: Setting, tmp_path: Path) -> None:
    text, toml, expected = example(setting)
    assert value_of(ServerConfig(), setting) == setting.default != expected
    by_flag = load_config({setting.name: text}, {})
    by_variable = load_config({}, {setting.variable: text})
    by_table = load_config({}, {}, write(tmp_path, f"[{setting.table}]\n{setting.key} = {toml}"))
    by_name = load_config({}, {}, write(tmp_path, f"{setting.name} = {toml}"))
    for resolved in (by_flag, by_variable, by_table, by_name):
        assert value_of(resolved.config, setting) == expected
        assert list(resolved.origins) == [setting.name]


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[http]\nport = 1\n[grpc]\nport = 1001\n[log]\nlevel = 'error'")
    environment = {"SESSILE_HTTP_PORT": "2", "SESSILE_GRPC_PORT": "1002", "SESSILE_CONFIG": str(path)}
    config = load_config({"http_port": "3"}, environment).config
    assert (config.http.port, config.grpc.port, config.log.level) == (3, 1002, "error")


def test_every_setting_has_a_description_and_its_own_name() -> None:
    assert all(setting.description for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert {"--model", "--host", "--http-port", "--grpc-port", "--data-dir", "--device"} <= {
        setting.flag for setting in SETTINGS
    }


@pytest.mark.parametrize(
    ("flags", "environment", "toml", "field", "words"),
    [
        ({}, {"SESSILE_HTP_PORT": "1"}, "", "SESSILE_HTP_PORT", "did you mean SESSILE_HTTP_PORT?"),
        ({}, {}, "[http]\nprot = 1", "http.prot", "did you mean http.port?"),
        ({}, {}, "[htp]\nport = 1", "htp", "did you mean http?"),
        ({}, {}, "modle = 'x'", "modle", "did you mean model?"),
        ({}, {}, "xyzzy = 1", "xyzzy", "sessile serve --help"),
        ({}, {}, "[http]\nport = '1'", "http.port", "a whole number from 0 to 65535"),
        ({}, {}, "[http]\nport = true", "http.port", "a whole number"),
        ({}, {}, "[http]\nport = 70000", "http.port", "70000"),
        ({}, {}, "http_port = 1\n[http]\nport = 1", "http.port", "twice"),
        ({}, {}, "[http\n", "config", "not TOML"),
        ({"http_port": "x"}, {}, "", "http.port", "--http-port is 'x'"),
        ({}, {"SESSILE_HTTP_PORT": "-1"}, "", "http.port", "SESSILE_HTTP_PORT is '-1'"),
        ({"device": "gpu"}, {}, "", "engine.device", "one of auto, cpu, cuda"),
        ({"kv_memory_bytes": "1XB"}, {}, "", "engine.kv_memory_bytes", "512MiB"),
        ({"drain_timeout_s": "nan"}, {}, "", "server.drain_timeout_s", "a number from 0"),
        ({"drain_timeout_s": "inf"}, {}, "", "server.drain_timeout_s", "a number from 0"),
        ({"data_dir": ""}, {}, "", "server.data_dir", "a path"),
        ({"http_port": "50051"}, {}, "", "grpc.port", "50051"),
        ({"tenant_weights": "gold=4,trial"}, {}, "", "engine.tenant_weights", "tenant=weight"),
        ({"tenant_weights": "gold=0"}, {}, "", "engine.tenant_weights", "0.01"),
        ({"tenant_weights": "gold=nan"}, {}, "", "engine.tenant_weights", "a number"),
        ({"max_batch_tokens": "2"}, {}, "", "engine.max_batch_tokens", "max_sequences"),
        ({"grpc_ping_interval_s": "31"}, {}, "", "grpc.ping_interval_s", "a number above 0 to 30"),
        ({"grpc_keepalive_s": "0"}, {}, "", "grpc.keepalive_s", "above 0 to 1000000"),
        ({"grpc_idle_s": "1e9"}, {}, "", "grpc.idle_s", "--grpc-idle-s is '1e9'"),
        ({}, {}, "[grpc]\nread_timeout_s = 0", "grpc.read_timeout_s", "a number above 0"),
        ({}, {"SESSILE_GRPC_SEND_TIMEOUT_S": "-1"}, "", "grpc.send_timeout_s", "SESSILE_GRPC_SEND_TIMEOUT_S is '-1'"),
        ({}, {}, "[grpc]\nkeepalive_timeout_s = '20'", "grpc.keepalive_timeout_s", "a number"),
        ({"grpc_max_streams": "0"}, {}, "", "grpc.max_streams", "a whole number from 1 to"),
        ({"grpc_max_connections": "many"}, {}, "", "grpc.max_connections", "a whole number from 1 to"),
        ({"grpc_max_metadata_bytes": "100"}, {}, "", "grpc.max_metadata_bytes", "from 1KiB to 1GiB"),
        ({"grpc_max_message_bytes": "2GiB"}, {}, "", "grpc.max_message_bytes", "from 1KiB to 1GiB"),
        ({}, {"SESSILE_LOG_REQUESTS": "perhaps"}, "", "log.requests", "true or false"),
    ],
)
def test_errors_name_the_key_and_the_remedy(tmp_path, flags, environment, toml, field, words) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, environment, write(tmp_path, toml))
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config({}, {}, tmp_path / "none.toml")


def test_what_lower_layers_read_is_handed_down(tmp_path: Path) -> None:
    environment = {"SESSILE_CPU_FEATURES": "avx2"}
    flags = {"cache_dir": "/a/cache", "cpu_features": "auto", "arithmetic": "deterministic", "http_port": "1"}
    hand_down(load_config(flags, environment, write(tmp_path, "log_level = 'error'")), environment)
    assert environment == {
        "SESSILE_CACHE_DIR": "/a/cache",
        "SESSILE_ARITHMETIC": "deterministic",
        "SESSILE_LOG_LEVEL": "error",
    }


def test_every_variable_in_the_code_is_a_setting() -> None:
    root = Path(__file__).resolve().parents[2]
    known = {setting.variable for setting in SETTINGS} | {"SESSILE_CONFIG"}
    for folder in ("server", "sessions", "kernels"):
        for path in (root / folder).rglob("*.py"):
            for variable in re.findall(r"[\"$`](SESSILE_[A-Z_]+[A-Z])\b", path.read_text()):
                assert variable in known, f"{path}: {variable}"


def test_other_variables_are_not_ours() -> None:
    assert load_config({}, {"PATH": "/bin", "SESSION": "x"}).origins == {}


@given(st.integers(0, 2**50), st.sampled_from([("", 1), ("KiB", 1024), ("MB", 10**6), ("gib", 2**30), (" kb", 1000)]))
def test_sizes(number: int, unit: tuple[str, int]) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == "kv_memory_bytes")
    if number * unit[1] >= 2**63 or number == 0:
        return
    assert setting.parse_text(f"{number}{unit[0]}", "x") == number * unit[1]


@given(st.integers(1, 2**45))
def test_a_shown_size_reads_back(size: int) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == "kv_memory_bytes")
    assert setting.parse_text(shown_size(size), "x") == size


def test_the_documentation_lists_every_setting() -> None:
    lines = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text().splitlines()
    for setting in SETTINGS:
        (line,) = (line for line in lines if f"| `{setting.flag}` |" in line)
        assert line.startswith(f"| `{setting.key}` | `{setting.flag}` | `{setting.variable}` |")
        assert line.endswith(f"| {setting.description} |")
        shown = shown_size(setting.default) if setting.is_size else setting.default
        if isinstance(shown, (int, float, str)) and not isinstance(shown, bool):
            assert f"`{shown}`" in line
