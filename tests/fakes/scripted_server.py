"""A front of its own process over a scripted engine: ``python scripted_server.py FOLDER PORT``. Prints its port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from byte_text import byte_tokenizer, chatml_template
from open_gate import open_gate
from scripted_engine import ScriptedEngine

from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.manager import SessionManager
from sessile.sessions.store import SessionStore


async def serve(folder: Path, port: int) -> None:
    manager = SessionManager(SessionStore(folder), ScriptedEngine(), byte_tokenizer(), chatml_template())
    server = RpcServer(manager, open_gate(), GrpcConfig(port=port))
    print(await server.start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
