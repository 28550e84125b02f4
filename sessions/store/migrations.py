"""How older tables become this version's: by steps, none of which is edited after a release. Also of batches' store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlite_utils import Database, Migrations

from ..errors import StoreError

Step = tuple[str, Callable[[Database], None]]


def apply_steps(
    database: Database, series: str, steps: Sequence[Step], store: str, damaged: Callable[[str], StoreError]
) -> None:
    """Make the ``steps`` that were not made yet, each in a transaction of its own. ``series``: their name in the file;
    ``store``: its name for people; ``damaged``: makes the error for content that cannot be what was written.

    Raises:
        StoreError: the file was written by a newer version, or what it says of its steps cannot be.
    """
    migrations = Migrations(series)
    for name, step in steps:
        migrations(name=name)(step)
    known = {name for name, _ in steps}
    try:
        unknown = [migration.name for migration in migrations.applied(database) if migration.name not in known]
    except KeyError as error:
        raise damaged("its table of migrations is not what it should be") from error
    if unknown:
        raise StoreError(
            f"{store} was written by a newer version of Sessile (it has {unknown[-1]!r})",
            remedy="run that version or a later one, or use another data folder",
        )
    migrations.apply(database)
