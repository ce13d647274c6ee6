"""WATTFRONT_* variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.errors import UsageError
from api.logs import LogFormat
from api.settings import Settings, load_settings
from tests.db.factories import REPOSITORY


def test_settings_have_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables the store is a file of the user's, the page is on loopback, and no wattage is made up."""
    monkeypatch.delenv("WATTFRONT_DATABASE_URL")
    monkeypatch.delenv("WATTFRONT_CACHE_DIR")
    settings = load_settings()
    assert settings.database_url.startswith("sqlite:////")
    assert settings.database_url.endswith("/wattfront/wattfront.db")
    assert (
        settings.host,
        settings.port,
        settings.database_timeout_s,
        settings.cpu_core_idle_w,
        settings.cpu_core_max_w,
    ) == ("127.0.0.1", 8710, 10.0, None, None)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field has its variable; variables of others are left alone."""
    given = {
        "DATABASE_URL": "sqlite:////tmp/x.db",
        "DATABASE_TIMEOUT_S": "0.5",
        "CACHE_DIR": "/tmp/cache",
        "HOST": "localhost",
        "PORT": "9000",
        "ALLOWED_HOSTS": "tuning.example.org",
        "TRUSTED_PROXIES": "10.0.0.1",
        "RATE_LIMIT_READS_PER_S": "5",
        "RATE_LIMIT_WRITES_PER_S": "0.5",
        "METRICS_OPEN": "true",
        "NIGHTLY": "false",
        "OPERATOR_FILE": "/tmp/operator.yaml",
        "LOG_FORMAT": "json",
        "ALLOW_DEVICE_CONTROL": "true",
        "STATE_DIR": "/tmp/state",
        "GUARD_SOCKET": "/tmp/guard.sock",
        "PRIOR_SM_CLOCK_CAPS_MHZ": '{"GPU-1": 1500}',
        "CPU_CORE_IDLE_W": "0.5",
        "CPU_CORE_MAX_W": "4",
    }
    assert {name.upper() for name in Settings.model_fields} == given.keys()
    for name, value in {**given, "RUN_STARTED_AT": "1"}.items():
        monkeypatch.setenv(f"WATTFRONT_{name}", value)
    assert (
        Settings(
            database_url="sqlite:////tmp/x.db",
            database_timeout_s=0.5,
            cache_dir=Path("/tmp/cache"),
            host="localhost",
            port=9000,
            allowed_hosts="tuning.example.org",
            trusted_proxies="10.0.0.1",
            rate_limit_reads_per_s=5.0,
            rate_limit_writes_per_s=0.5,
            metrics_open=True,
            nightly=False,
            operator_file=Path("/tmp/operator.yaml"),
            log_format=LogFormat.JSON,
            allow_device_control=True,
            state_dir=Path("/tmp/state"),
            guard_socket=Path("/tmp/guard.sock"),
            prior_sm_clock_caps_mhz={"GPU-1": 1500},
            cpu_core_idle_w=0.5,
            cpu_core_max_w=4.0,
        )
        == load_settings()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("PORT", "0"),
        ("DATABASE_TIMEOUT_S", "0"),
        ("DATABASE_TIMEOUT_S", "nan"),
        ("DATABASE_TIMEOUT_S", "forever"),
        ("CPU_CORE_IDLE_W", "-1"),
        ("CPU_CORE_MAX_W", "0"),
        ("CPU_CORE_MAX_W", "inf"),
        ("CPU_CORE_MAX_W", "nan"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A value that cannot be used is refused with the variable's name and the value."""
    monkeypatch.setenv(f"WATTFRONT_{name}", value)
    with pytest.raises(UsageError, match=f"^WATTFRONT_{name} is '{value}': "):
        load_settings()


@pytest.mark.parametrize("name", ["CPU_CORE_IDLE_W", "CPU_CORE_MAX_W"])
def test_wattages_come_in_pairs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One of the two wattages alone is refused: the other would be somebody else's."""
    monkeypatch.setenv(f"WATTFRONT_{name}", "3")
    with pytest.raises(UsageError, match="belong together: set both or neither"):
        load_settings()


def test_idle_is_not_above_full_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that idles at more than its full power is refused with both numbers."""
    monkeypatch.setenv("WATTFRONT_CPU_CORE_IDLE_W", "5")
    monkeypatch.setenv("WATTFRONT_CPU_CORE_MAX_W", "4")
    with pytest.raises(UsageError, match=r"IDLE_W is 5: it must not exceed WATTFRONT_CPU_CORE_MAX_W, which is 4"):
        load_settings()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name: str) -> None:
    """README.md names every variable that the program reads."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\bWATTFRONT_{name.upper()}\b", readme)
