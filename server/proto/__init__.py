"""The wire form of the session API: ``session.proto``, its generated stubs, and their translation to values."""
