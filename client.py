"""The client under its short name: ``from sessile.client import SessionClient``. What it is stands in ``server/client``."""

from .server.client import *  # noqa: F403
from .server.client import __all__ as __all__
