"""A comparison as one HTML file with its pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import jinja2

from .files import write_whole
from .record import RunRecord
from .rows import rows_of

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #111; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { border-bottom: 1px solid #ccc; padding: .3rem .7rem; }
th { text-align: left; vertical-align: bottom; } td.best { font-weight: 700; } td.best::after { content: " ●"; }
img { max-width: 100%; } .warn { border-left: 4px solid #111; padding-left: .7rem; } small { color: #555; }
@media (prefers-color-scheme: dark) { img { background: #fff; } }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ workload.sessions }} sessions, {{ workload.turns }} turns; workload {{ workload.sha256[:16] }},
{{ load.arrivals }} arrivals, {{ load.concurrency }} sessions at a time, {{ load.repeats }} repeats,
seed {{ load.seed }}.</p>
{% for line in warnings %}<p class="warn">{{ line }}</p>{% endfor %}
<table><thead><tr><th></th>{% for r in records %}<th>{{ r.label }}<br><small>{{ r.provenance.server.name }}
{{ r.provenance.server.version }}, {{ r.provenance.server.wire }}</small></th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr><th>{{ row.name }}</th>{% for cell in row.cells %}
<td{% if row.best == loop.index0 %} class="best"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>
<p><small>In parentheses: 95% intervals ({{ interval }}). ●: best of the row.</small></p>
{% for caption, picture in pictures %}<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ picture }}">
<figcaption>{{ caption }}</figcaption></figure>{% endfor %}
<h2>Where it comes from</h2>
<table><thead><tr><th></th>{% for r in records %}<th>{{ r.label }}</th>{% endfor %}</tr></thead><tbody>
{% for name, cells in facts %}<tr><th>{{ name }}</th>{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></body></html>
"""


def write_page(
    records: Sequence[RunRecord], pictures: Sequence[tuple[str, Path]], warnings: Sequence[str], path: Path
) -> Path:
    """Write it; ``pictures`` are captions and PNG files. Returns ``path``. Raises BenchError."""
    first = records[0]
    later = first.summary.ttft_later_s or first.summary.e2e_s
    encoded = [(caption, base64.b64encode(file.read_bytes()).decode()) for caption, file in pictures]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    return write_whole(
        path,
        template.render(
            title=f"{first.workload.name}: {_titled([record.label for record in records])}",
            workload=first.workload,
            load=first.load,
            records=records,
            rows=rows_of(records),
            warnings=warnings,
            interval=later.interval if later else "none",
            pictures=encoded,
            facts=facts_of(records),
        ).encode(),
    )


def _titled(labels: Sequence[str]) -> str:
    return " and ".join(labels) if len(labels) < 4 else f"{len(labels)} results side by side"


def facts_of(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Provenance, a name and a text for each record."""
    rows: list[tuple[str, list[str]]] = []
    for name in ("model", "quantisation", "version", "flags", "address", "wire"):
        found = [getattr(record.provenance.server, name) for record in records]
        rows.append(
            (f"server: {name}", [" ".join(value) if isinstance(value, tuple) else str(value) for value in found])
        )
    rows.append(("machine", [_machine(record) for record in records]))
    rows.append(("system", [record.provenance.hardware.system for record in records]))
    rows.append(("git revision", [str(record.provenance.git_revision) for record in records]))
    rows.append(("made", [record.provenance.created_at for record in records]))
    return rows


def _machine(record: RunRecord) -> str:
    found = record.provenance.hardware
    accelerators = f", {', '.join(found.accelerators)}" if found.accelerators else ""
    return f"{found.cpu}, {found.cores} cores, {found.memory_bytes / 2**30:.0f} GiB{accelerators}"
