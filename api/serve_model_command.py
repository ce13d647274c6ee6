"""The command `serve-model`: the embedded engine behind an OpenAI-compatible endpoint, at a tuned point if asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.errors import UsageError
from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.model_server.choice import Choice
    from probes.settings import DeviceSettings

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command("serve-model")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others than loopback need "
              "--api-key-env.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--point", metavar="JOB:N", help="Serve the trial N of a job; JOB alone is its best point.")
@click.option("--sla", metavar="NAME=VALUE,...", help="Serve the stored point with the most tokens per joule inside "
              "these limits, as in ttft_p99_ms=500,tpot_p99_ms=50.")  # fmt: skip
@click.option("--allow-device-control", is_flag=True, help="Set the point's clocks and power limits while serving; the "
              "operator must allow it too.")  # fmt: skip
@click.option("--device", help="auto, cpu, gpu, cuda:N or a UUID [default: the job's with --point, else auto].")
@click.option("--precision", help="As in docs/knobs.md: fp32, bf16, int8, int4 and others [default: fp32].")
@click.option("--kv-precision", help="What keys and values are kept in: auto, bf16, fp8, int8 [default: auto].")
@click.option("--max-batch", type=int, help="Sequences that run at once [default: 8].")
@click.option("--prefill-chunk", type=int, help="Prompt tokens of a step at most [default: 256].")
@click.option("--policy", help="decode_first, prefill_first, or priority: requests by their field `priority` "
              "[default: decode_first].")  # fmt: skip
@click.option("--max-prefill-fraction", type=float, help="Most that prompts may be of a step's tokens while others "
              "decode [default: 1].")  # fmt: skip
@click.option("--prefix-caching", is_flag=True, default=None, help="Keep computed blocks for prompts that begin alike.")
@click.option("--max-context", type=int, help="Longest prompt plus output [default: the job's, else the model's].")
@click.option("--block-size", type=int, help="Tokens in a KV-cache block [default: 16].")
@click.option("--num-kv-blocks", type=int, help="Blocks in the KV cache [default: as many as max-batch may need].")
@click.option("--num-threads", type=int, help="Compute threads [default: one per core].")
@click.option("--gpu-memory-fraction", type=float, help="Share of a GPU's memory to fill [default: 0.9].")
@click.option("--served-model-name", metavar="NAME", help="What callers name the model [default: MODEL].")
@click.option("--chat-template", type=click.Path(path_type=Path), metavar="FILE", help="A jinja2 chat template "
              "[default: the checkpoint's].")  # fmt: skip
@click.option("--max-queue", type=click.IntRange(min=0), default=256, show_default=True, help="Requests that may wait; "
              "more are answered 503.")  # fmt: skip
@click.option("--drain-s", type=click.IntRange(min=0), default=30, show_default=True, help="Seconds that running "
              "requests have to end after a signal.")  # fmt: skip
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable with the key that callers must send.")
@click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")
@click.pass_obj
def serve_model(
    settings: Settings,
    /,
    model: str,
    host: str,
    port: int,
    point: str | None,
    sla: str | None,
    allow_device_control: bool,
    device: str | None,
    served_model_name: str | None,
    chat_template: Path | None,
    max_queue: int,
    drain_s: int,
    api_key_env: str | None,
    database_url: str | None,
    **options: Any,
) -> None:
    """Serve MODEL by the embedded engine to OpenAI's clients until Ctrl-C.

    MODEL is a folder, a .gguf file, a Hugging Face id or smollm2-135m. After a signal running requests are answered,
    then clocks are put back; docs/serve_model.md has the paths and fields. Exit code 1 when the engine died.
    """
    api_key = _api_key(host, api_key_env)
    from api.model_server.chat_template import load_template
    from api.model_server.device_settings import applied
    from api.model_server.running import Serving, bound_socket, serve_until_stopped
    from api.model_server.vocabulary import Vocabulary
    from engine.errors import EngineDied
    from engine.host import EngineHost

    with bound_socket(host, port) as listener:
        if database_url is not None:
            settings = settings.model_copy(update={"database_url": database_url})
        choice = _choose(
            model, settings, options, point=point, sla=sla, device=device, allow_device_control=allow_device_control
        )
        vocabulary = Vocabulary(choice.files.folder)
        template = load_template(choice.files.folder, vocabulary, chosen=chat_template)
        opened = EngineHost(choice.settings, choice.files.folder, model_hash=choice.files.model_hash)
        try:
            with applied(choice, settings) as holding:
                _tell(choice)
                _say(f"chat template: {'none' if template is None else template.origin}")
                address = listener.getsockname()
                shown = f"[{address[0]}]" if ":" in address[0] else address[0]
                _say(f"serving {served_model_name or model} at http://{shown}:{address[1]}; Ctrl-C stops")
                serve_until_stopped(
                    Serving(
                        name=served_model_name or model,
                        settings=choice.settings,
                        folder=choice.files.folder,
                        vocabulary=vocabulary,
                        template=template,
                        max_queue=max_queue,
                        drain_s=drain_s,
                        api_key=api_key,
                        is_device_set=None if holding is None else lambda: holding.is_in_force,
                    ),
                    opened,
                    listener,
                )
        except EngineDied as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        finally:
            opened.close()
    _say("stopped")


def _choose(
    model: str,
    settings: Settings,
    options: dict[str, Any],
    *,
    point: str | None,
    sla: str | None,
    device: str | None,
    allow_device_control: bool,
) -> Choice:
    from api.model_server.choice import by_limits, by_options, by_point
    from api.stores import open_stores

    if point is not None and sla is not None:
        raise UsageError(f"--point is {point!r} and --sla {sla!r}; give one of them")
    if point is None and sla is None:
        if allow_device_control:
            raise UsageError("--allow-device-control is for a point's clocks; give --point or --sla, or leave it out")
        return by_options(model, device or "auto", options, settings, _progress)
    if point is not None and device is not None:
        raise UsageError(f"--device is {device!r}, but the job of --point has its own; leave it out")
    stores = open_stores(settings.database_url, busy_timeout_s=settings.database_timeout_s)
    how: dict[str, Any] = {
        "model": model,
        "options": options,
        "allow_device_control": allow_device_control,
        "settings": settings,
        "progress": _progress,
    }
    if point is not None:
        return by_point(stores, point, **how)
    assert sla is not None
    return by_limits(stores, sla, device=device or "auto", **how)


def _api_key(host: str, variable: str | None) -> str | None:
    """Return the key that callers must send. Raises UsageError where one is needed and not there."""
    if variable is None:
        if host not in _LOOPBACK:
            raise UsageError(f"--host is {host!r}, which others can reach; name a key's variable with --api-key-env")
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"--api-key-env is {variable!r}, which is not set; put the key there")
    return key


def _tell(choice: Choice) -> None:
    """Say what is served, and what of the point is not."""
    chosen = choice.settings
    longest = chosen.max_context or "the model's"
    _say(f"{choice.origin}")
    _say(
        f"engine: precision={chosen.precision} max_batch={chosen.max_batch} prefill_chunk={chosen.prefill_chunk} "
        f"policy={chosen.policy} max_context={longest} on {choice.device.info.name}"
    )
    if not choice.device_settings.is_empty:
        _say(f"set on the device and put back at the end: {_words(choice.device_settings)}")
    if not choice.left_out.is_empty:
        _say(
            f"warning: NOT set on the device, so the point's figures do not hold: {_words(choice.left_out)}; "
            "--allow-device-control sets it"
        )
    for note in choice.notes:
        _say(f"warning: {note}")


def _words(found: DeviceSettings) -> str:
    return " ".join(f"{name}={value}" for name, value in found.as_dict().items())


def _say(words: str) -> None:
    click.echo(words, err=True)


def _progress(what: str, share: float) -> None:
    """Fetching a model says nothing here but at its beginning."""
    if share == 0.0:
        _say(f"{what} ...")
