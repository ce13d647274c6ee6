"""WATTFRONT_* environment variables, read once by `cli.main` and passed down. Documented in README.md."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from api.errors import UsageError
from api.logs import LogFormat
from db.database import BUSY_TIMEOUT_S


def _default_database_url() -> str:
    return f"sqlite:///{platformdirs.user_data_path('wattfront') / 'wattfront.db'}"


def _default_cache_dir() -> Path:
    return platformdirs.user_cache_path("wattfront")


#: Where the guard, which runs as root, keeps its journal and its socket; everybody may look there.
SYSTEM_STATE_DIR = Path("/var/lib/wattfront")
GUARD_SOCKET = Path("/run/wattfront/guard.sock")
#: Addresses on which nobody but this machine reaches a service.
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def _default_state_dir() -> Path:
    """Return the machine's folder for root and wherever a guard made it, else the user's own."""
    is_shared = os.geteuid() == 0 or SYSTEM_STATE_DIR.is_dir()
    return SYSTEM_STATE_DIR if is_shared else platformdirs.user_state_path("wattfront")


class Settings(BaseSettings):
    """The operator's choices."""

    model_config = SettingsConfigDict(env_prefix="WATTFRONT_", frozen=True, extra="ignore")

    #: SQLAlchemy URL of the one store.
    database_url: str = Field(default_factory=_default_database_url)
    #: Seconds to wait for another process that writes to the store.
    database_timeout_s: float = Field(default=BUSY_TIMEOUT_S, gt=0, le=3600)
    #: Where fetched and converted models are kept.
    cache_dir: Path = Field(default_factory=_default_cache_dir)
    #: Address and port of the web service.
    host: str = "127.0.0.1"
    port: int = Field(default=8710, ge=1, le=65535)
    #: Names that the service answers to beside loopback's, by comma: needed where it listens elsewhere.
    allowed_hosts: str = ""
    #: Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, by comma.
    trusted_proxies: str = ""
    #: How often each caller may read and change something; 0 lifts the limit.
    rate_limit_reads_per_s: float = Field(default=1000, ge=0, le=1e6)
    rate_limit_writes_per_s: float = Field(default=10, ge=0, le=1e6)
    #: Whether /metrics can be read without a key.
    metrics_open: bool = False
    #: Whether this service keeps the nights of schedules; several may, and each night runs once.
    nightly: bool = True
    #: File of what callers over HTTP may name: devices, models, notification targets; see api/operator_file.py.
    operator_file: Path | None = None
    #: How log lines look: for people, or JSON for machines.
    log_format: LogFormat = LogFormat.CONSOLE
    #: Whether jobs that ask for it may set clocks and power limits; without it every device is only observed.
    allow_device_control: bool = False
    #: Where it is written down what was found on a device before anything was set.
    state_dir: Path = Field(default_factory=_default_state_dir)
    #: Socket of `wattfront guard`; where it is there, clocks and limits are set through it.
    guard_socket: Path = GUARD_SOCKET
    #: The SM clock cap that an administrator had set before, by GPU UUID: the driver cannot tell.
    prior_sm_clock_caps_mhz: dict[str, int] = Field(default_factory=dict)
    #: Watts of one core, idle and fully loaded, for the labelled estimate; see docs/measuring.md.
    cpu_core_idle_w: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cpu_core_max_w: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the web service."""
        return self.host in LOOPBACK_HOSTS

    @property
    def allowed_host_names(self) -> tuple[str, ...]:
        """Names that the service answers to beside loopback's."""
        return _listed(self.allowed_hosts)

    @property
    def trusted_proxy_addresses(self) -> tuple[str, ...]:
        """Addresses of proxies that are believed."""
        return _listed(self.trusted_proxies)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def load_settings() -> Settings:
    """Read the environment; raise UsageError naming the variable, its value and what is allowed."""
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "WATTFRONT_" + str(first["loc"][0]).upper()
        raise UsageError(f"{name} is {first['input']!r}: {first['msg'].lower()}") from error
    if (settings.cpu_core_idle_w is None) != (settings.cpu_core_max_w is None):
        raise UsageError("WATTFRONT_CPU_CORE_IDLE_W and WATTFRONT_CPU_CORE_MAX_W belong together: set both or neither")
    if (
        settings.cpu_core_idle_w is not None
        and settings.cpu_core_max_w is not None
        and settings.cpu_core_idle_w > settings.cpu_core_max_w
    ):
        raise UsageError(
            f"WATTFRONT_CPU_CORE_IDLE_W is {settings.cpu_core_idle_w:g}: it must not exceed WATTFRONT_CPU_CORE_MAX_W, "
            f"which is {settings.cpu_core_max_w:g}"
        )
    return settings
