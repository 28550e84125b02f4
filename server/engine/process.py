"""The engine's process: ``python -m sessile.server.engine.process CONFIG INBOX OUTBOX``.

One loop: take what the front sent, step, send what came out. It leaves when the front says so or is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch
import zmq

from ...kernels.backend import prepare, select
from ...sessions.errors import SessileError
from ..log_lines import log_to_stderr
from ..model.registry import load_model, resolve_model
from ..model.source import ModelSource, default_cache_dir
from .cache_messages import CacheCall
from .core import EngineCore
from .device.interface import Memory
from .device.memory_plan import weights_fit
from .engine_config import Device, EngineConfig
from .kept_calibration import KeptCalibration
from .lower_tiers import TierSetup, open_lower_tiers, wants_lower_tiers
from .messages import (
    AbortTurn,
    Alive,
    EngineFailed,
    EngineReady,
    FromEngine,
    LoadProgress,
    Shutdown,
    StepFailed,
    SubmitTurn,
    ToEngine,
    TurnOutputs,
)
from .speculation.setup import open_draft_model, open_drafter

if TYPE_CHECKING:
    from llguidance import LLTokenizer

logger = logging.getLogger(__name__)

IDLE_POLL_MS = 1000
LOADING_POLL_MS = 1  # turns wait for a load, which is not a message
MESSAGES_S = 0.02  # running streams wait for their next step meanwhile
ALIVE_S = 1.0
PR_SET_PDEATHSIG = 1


class EngineProcess:
    """The engine's end of the two queues, and the loop between them."""

    def __init__(self, config: EngineConfig, inbox: str, outbox: str) -> None:
        self._config = config
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._inbox = context.socket(zmq.PULL)
        self._inbox.connect(inbox)
        self._outbox = context.socket(zmq.PUSH)
        self._outbox.connect(outbox)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._front = os.getppid()

    def run(self) -> int:
        """Load the model and serve; returns the exit status."""
        try:
            core = self._load()
        except (SessileError, OSError, RuntimeError, ValueError, MemoryError) as error:
            logger.error("the engine cannot start", exc_info=None if isinstance(error, SessileError) else error)
            remedy = error.remedy if isinstance(error, SessileError) else None
            message = error.message if isinstance(error, SessileError) else f"{type(error).__name__}: {error}"
            self._send(EngineFailed(message, remedy))
            return 1
        return self._serve(core)

    def _serve(self, core: EngineCore) -> int:
        spoke = time.monotonic()
        while self._take_messages(core):
            outputs, admitted = [], []
            if core.has_work:
                try:
                    outputs, admitted = core.step(), core.take_admitted()
                except Exception as error:  # what state it left behind is not known: the front starts a new engine
                    logger.exception("a step failed")
                    self._send(StepFailed(core.turns_in_step, f"{type(error).__name__}: {error}"))
                    return 1
            for answer in core.take_answers():
                self._send(answer)
            if (events := core.take_events()) is not None:
                self._send(events)
            now = time.monotonic()
            if outputs or admitted:
                self._send(TurnOutputs(outputs, core.stats(), admitted))
            elif now - spoke >= ALIVE_S:
                self._send(Alive(core.stats()))
            else:
                continue
            spoke = now
        core.close()
        return 0

    def _load(self) -> EngineCore:
        config = self._config
        device = _device(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        prepare(device.type, self._report)
        source = resolve_model(config.model, None, self._report)
        with _weights_fit(device, "engine.model"):
            model = load_model(source, device=device, dtype=config.dtype.value, progress=self._report)
        self._report("open the cache tiers", 0.0)
        tiers = None
        if wants_lower_tiers(config):
            kept = KeptCalibration(
                default_cache_dir() / "calibration",
                model.name,
                (model.fingerprint, str(config.threads), config.disk_path),
            )
            tiers = TierSetup(partial(open_lower_tiers, config), kept.calibrate, kept.keep)
        torch.set_num_threads(1)  # the kernels have threads of their own; torch's pool would spin beside them
        with _weights_fit(device, "engine.draft_model"):
            small = open_draft_model(config, model.config.vocab_size, device, self._report)
        core = EngineCore(
            config,
            model.model,
            device,
            time.monotonic,
            model.fingerprint,
            tiers,
            self._report,
            partial(open_drafter, config, model.fingerprint, small),
            partial(_vocabulary, source, model.config.vocab_size),
        )
        self._send(
            EngineReady(
                model=model.name,
                fingerprint=model.fingerprint,
                device=str(device),
                dtype=config.dtype.value,
                vocab_size=model.config.vocab_size,
                context_length=core.context_length,
                block_size=config.block_size,
                num_blocks=core.num_blocks,
                kernels=select(device.type).describe(),
            )
        )
        return core

    def _take_messages(self, core: EngineCore) -> bool:
        """Handle what waits, for a moment if there is work, else until there is none; without work, wait for something.
        False: leave."""
        until = time.monotonic() + MESSAGES_S
        while True:
            if not self._inbox.poll(_poll_ms(core)):
                return os.getppid() == self._front
            match self._decoder.decode(self._inbox.recv()):
                case SubmitTurn() as turn:
                    core.submit(turn)
                case AbortTurn(turn_id):
                    core.abort(turn_id)
                case CacheCall() as call:
                    core.call(call)
                case Shutdown():
                    return False
            if core.has_work and time.monotonic() > until:  # of thousands of turns that come at once
                return True

    def _report(self, stage: str, fraction: float) -> None:
        self._send(LoadProgress(stage, fraction))

    def _send(self, message: FromEngine) -> None:
        self._outbox.send(self._encoder.encode(message))


def _poll_ms(core: EngineCore) -> int:
    """How long the front may be waited for."""
    if core.only_waits:
        return LOADING_POLL_MS
    return 0 if core.has_work or core.has_answers else IDLE_POLL_MS


def _vocabulary(source: ModelSource, size: int) -> LLTokenizer:
    """The tokens' bytes. Reading the tokenizer takes a second: only engines that get a grammar do so."""
    from ..text.grammar_vocabulary import GrammarVocabulary
    from ..text.guidance import guidance_tokenizer
    from ..text.tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(source)
    return guidance_tokenizer(GrammarVocabulary.of(tokenizer, size), tokenizer.encode_inside)


def _device(wanted: Device) -> torch.device:
    if wanted is Device.AUTO:
        wanted = Device.CUDA if torch.cuda.is_available() else Device.CPU
    return torch.device(wanted.value)


def _weights_fit(device: torch.device, field: str) -> AbstractContextManager[None]:
    """In which weights are loaded: a GPU that has no room for them is told with its numbers."""
    if device.type != "cuda":
        return nullcontext()
    return weights_fit(Memory(*torch.cuda.mem_get_info(device)), field)


def _die_with_parent() -> None:
    """Ask Linux for a SIGKILL when the front is gone; elsewhere the loop notices within a second."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Entry point of the child; the front alone starts it."""
    log_to_stderr(os.environ.get("SESSILE_LOG_LEVEL", "info"))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the watchdog asks where a hanging engine is
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches both; the front decides
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    return EngineProcess(config, inbox=sys.argv[2], outbox=sys.argv[3]).run()


if __name__ == "__main__":
    sys.exit(main())
