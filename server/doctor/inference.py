"""Checks of what runs the model: torch's device, the kernels, and the model's files. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...sessions.errors import SessileError
from ..config import ServerConfig
from ..engine.engine_config import Device
from .finding import Finding, Health


def check_inference(config: ServerConfig) -> Iterator[Finding]:
    """Device, kernels, model, and how its answers are read."""
    device = _device(config.engine.device)
    yield device
    if device.health is not Health.BROKEN:
        yield _kernels("cuda" if device.found.startswith("cuda") else "cpu")
    yield _model(config.engine.model)
    yield _tiers()
    yield from _answers(config)


def _device(wanted: Device) -> Finding:
    import torch

    if torch.cuda.is_available() and wanted is not Device.CPU:
        properties = torch.cuda.get_device_properties(0)
        found = f"cuda: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        return Finding(topic="device", found=found)
    if wanted is Device.CUDA:
        return Finding(
            topic="device",
            found="cuda was asked for, but torch sees no GPU",
            health=Health.BROKEN,
            remedy="install a CUDA build of torch and the driver, or give --device cpu",
        )
    return Finding(topic="device", found=f"cpu ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}")


def _kernels(device: str) -> Finding:
    from ...kernels.backend import Implementation, select

    try:
        selection = select(device)
    except ValueError as error:
        return Finding(
            topic="kernels", found=str(error), health=Health.BROKEN, remedy="give --cpu-features less, or leave it out"
        )
    served: dict[str, list[str]] = {}
    for op, line in selection.describe().items():
        served.setdefault(line, []).append(op)
    found = "; ".join(f"{line}: {', '.join(ops)}" for line, ops in served.items())
    plain = all(name is Implementation.TORCH for name in selection.implementations.values())
    return Finding(
        topic="kernels",
        found=f"{found} ({selection.reason})",
        health=Health.WARNING if plain else Health.OK,
        remedy="plain torch is slow; see the compiler's line" if plain else None,
    )


def _model(name: str | None) -> Finding:
    from ..model.embedded import EMBEDDED_NAME, find_embedded
    from ..model.source import default_cache_dir, resolve_model

    if name is None or name == EMBEDDED_NAME:
        prepared = find_embedded(default_cache_dir())
        if prepared is None:
            return Finding(
                topic="model",
                found=f"{EMBEDDED_NAME} (embedded) is not in {default_cache_dir()} yet, or is damaged",
                health=Health.WARNING,
                remedy="the first `sessile serve` fetches it; that needs the network once",
            )
        return Finding(topic="model", found=f"{EMBEDDED_NAME} (embedded): {prepared.folder}, hashes are right")
    if not Path(name).expanduser().exists() and "/" in name:
        return Finding(topic="model", found=f"{name}: a hub id, fetched at the start unless it is in the hub's cache")
    try:
        source = resolve_model(name, None, lambda _stage, _fraction: None)
    except SessileError as error:
        return Finding(topic="model", found=error.message, health=Health.BROKEN, remedy=error.remedy)
    return Finding(topic="model", found=f"{source.name} ({source.kind.value}): {source.path}")


def _tiers() -> Finding:
    """From how many tokens on each tier is worth a load, as the engine that ran last knew it."""
    from ..engine.kept_calibration import newest
    from ..model.source import default_cache_dir

    kept = newest(default_cache_dir() / "calibration")
    if kept is None:
        return Finding(
            topic="tiers", found="not measured yet; the first `sessile serve` with a tier below the pool does"
        )
    worth = ", ".join(
        f"{tier} never" if tokens is None else f"{tier} from {tokens} tokens on"
        for tier, tokens in kept.break_even_tokens().items()
    )
    return Finding(topic="tiers", found=f"with {kept.model}, loading beats computing: {worth}")


def _answers(config: ServerConfig) -> Iterator[Finding]:
    """How tool calls and reasoning are read, of a model that is here."""
    from ..model.embedded import EMBEDDED_NAME, find_embedded
    from ..model.source import default_cache_dir, resolve_model
    from ..text.answer_format import choose_format
    from ..text.tokenizer_files import load_chat_template, load_tokenizer

    name = config.engine.model
    embedded = name is None or name == EMBEDDED_NAME
    here = find_embedded(default_cache_dir()) is not None if embedded else Path(name or "").expanduser().exists()
    if not here:
        return
    try:
        source = resolve_model(name, None, lambda _stage, _fraction: None)
        tokenizer = load_tokenizer(source)
        template = load_chat_template(source, tokenizer)
    except SessileError:
        return  # said above, or when the server starts
    chosen = choose_format(template.source, lambda text: tokenizer.token_id(text) is not None, config.text)
    yield Finding(
        topic="answers",
        found=f"tool calls as {chosen.tools}, reasoning as {chosen.reasoning} ({chosen.because})",
    )
