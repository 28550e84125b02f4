"""html: one page without foreign hosts or scripts; each lineage is a strip with its findings in place."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from importlib import resources

from ..findings import Finding
from ..run import Report
from ..strips import Strip
from .plain import cost_of, place_of, shown, summary_line, verdict_line

_MOST_LINEAGES = 60
_MOST_REQUESTS = 80

_STYLE = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")


def as_html(report: Report, *, show_values: bool) -> str:
    """The page."""
    parts = ["<h1>prompt-lint</h1>", f"<p>{escape(verdict_line(report))}</p>", _numbers(report)]
    for name, strips in report.strips:
        parts.append(_trace(name, strips, report.findings, show_values=show_values))
    parts.append(_table(report))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>prompt-lint report</title><style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _numbers(report: Report) -> str:
    prompt = sum(s.prompt_tokens for _, s in report.summaries)
    if not prompt:
        return ""
    reused = sum(s.reused_tokens for _, s in report.summaries)
    lost = sum(s.lost_tokens for _, s in report.summaries)
    cells = [
        (f"{reused / prompt:.0%}", "of the prompt tokens were reused"),
        (f"{min(1.0, lost / prompt):.0%}", "were lost to findings"),
        (f"{prompt:,}", "prompt tokens"),
    ]
    key = "".join(
        f'<span><i class="{c}"></i>{word}</span>'
        for c, word in (("r", "reused"), ("l", "lost: was cached, computed again"), ("n", "new"))
    )
    numbers = "".join(f"<div><b>{value}</b>{label}</div>" for value, label in cells)
    return f'<div class="big">{numbers}</div><p class="key">{key}</p>'


def _trace(name: str, strips: list[Strip], findings: list[Finding], *, show_values: bool) -> str:
    chains = _chains(strips)
    at: dict[tuple[str, int], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.location.request is not None:
            at[finding.location.file, finding.location.request].append(finding)
    ordered = sorted(chains, key=lambda chain: -sum(s.possible - s.reused for s in chain))
    parts = [f"<h2>{escape(name)}</h2>"]
    parts += [_lineage(chain, at, show_values=show_values) for chain in ordered[:_MOST_LINEAGES]]
    if len(ordered) > _MOST_LINEAGES:
        parts.append(f"<p>{len(ordered) - _MOST_LINEAGES} more lineages lost less.</p>")
    return "\n".join(parts)


def _chains(strips: list[Strip]) -> list[list[Strip]]:
    chain_of: dict[int, list[Strip]] = {}
    chains: list[list[Strip]] = []
    for strip in strips:
        chain = chain_of.get(strip.parent) if strip.parent is not None else None
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(strip)
        chain_of[strip.index] = chain
    return chains


def _lineage(chain: list[Strip], at: dict[tuple[str, int], list[Finding]], *, show_values: bool) -> str:
    widest = max(s.total for s in chain) or 1
    session = f"session {chain[0].session}" if chain[0].session else f"from request {chain[0].index}"
    lost = sum(s.possible - s.reused for s in chain)
    rows = [
        _row(strip, widest) + "".join(_note(f, show_values=show_values) for f in at.get((strip.file, strip.index), ()))
        for strip in chain[:_MOST_REQUESTS]
    ]
    more = f"<p>{len(chain) - _MOST_REQUESTS} more requests.</p>" if len(chain) > _MOST_REQUESTS else ""
    title = f"{escape(session)}: {len(chain)} requests, {lost:,} tokens lost"
    return f'<section class="lineage"><h3>{title}</h3>{"".join(rows)}{more}</section>'


def _row(strip: Strip, widest: int) -> str:
    lost, new = strip.possible - strip.reused, strip.total - strip.possible
    pieces = "".join(
        f'<i class="{c}" style="width:{100 * n / widest:.2f}%"></i>'
        for c, n in (("r", strip.reused), ("l", lost), ("n", new))
        if n > 0
    )
    label = f"{strip.reused:,} reused, {lost:,} lost, {new:,} new tokens"
    short = f"{lost:,} lost" if lost else f"{strip.reused / max(1, strip.total):.0%} reused"
    bar = f'<div class="bar" role="img" aria-label="{label}" title="{label}">{pieces}</div>'
    return f'<div class="row"><span>#{strip.index}</span>{bar}<span class="num">{short}</span></div>'


def _note(finding: Finding, *, show_values: bool) -> str:
    char = "" if finding.location.char is None else f" char {finding.location.char}"
    was, now = shown(finding.was, show_values=show_values), shown(finding.now, show_values=show_values)
    change = f" <code>{escape(was or '')} → {escape(now or '')}</code>" if was or now else ""
    where = f"{finding.location.path or ''}{char}"
    word = finding.severity.word
    what = f"<b>{finding.rule} {finding.name}</b> at <code>{escape(where)}</code>: {escape(finding.message)}.{change}"
    note = f'<div class="at"><span class="{word}">{word}</span> {what}<br>{escape(finding.fix)}</div>'
    return f'<div class="row"><span></span>{note}</div>'


def _table(report: Report) -> str:
    if not report.findings:
        return ""
    rows = "".join(_table_row(f) for f in report.findings[:1000])
    lines = "".join(f"<li>{escape(summary_line(name, s))}</li>" for name, s in report.summaries)
    head = "<tr><th>severity</th><th>rule</th><th>where</th><th>what to do</th><th>cost</th></tr>"
    return f"<h2>Findings</h2><table>{head}{rows}</table><ul>{lines}</ul>"


def _table_row(finding: Finding) -> str:
    word = finding.severity.word
    cells = (
        f'<td class="{word}">{word}</td>',
        f"<td>{finding.rule}<br>{finding.name}</td>",
        f"<td><code>{escape(place_of(finding.location))}</code></td>",
        f"<td>{escape(finding.message)}<br>{escape(finding.fix)}</td>",
        f"<td>{escape(cost_of(finding))}</td>",
    )
    return f"<tr>{''.join(cells)}</tr>"
