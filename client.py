"""The client under its short name: ``from sessile.client import SessionClient`` (see ``server/client``)."""

from .server.client import *  # noqa: F403
from .server.client import __all__ as __all__
