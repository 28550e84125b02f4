"""PL902: sums and ratios over usage fields that count the cached part twice, or not at all."""

from __future__ import annotations

from . import ir

_INCLUDES_CACHED = {"prompt_tokens", "promptTokens", "promptTokenCount", "prompt_token_count"}
_CACHED_PART = {
    "cached_tokens",
    "cachedTokens",
    "cachedContentTokenCount",
    "cached_content_token_count",
    "prompt_cache_hit_tokens",
    "cached_input_tokens",
}
_EXCLUDES_CACHED = {"input_tokens", "inputTokens"}
_ANTHROPIC_READ = {"cache_read_input_tokens", "cacheReadInputTokens"}


def misread_usage(node: ir.Node, imports: dict[str, str]) -> str | None:
    """What is wrong with a sum or ratio of usage fields, or None."""
    if isinstance(node, ir.Sum):
        names = _terms(node)
        if names & _INCLUDES_CACHED and names & _CACHED_PART:
            return "cached tokens are added to a count that already includes them"
        return None
    if isinstance(node, ir.Ratio):
        top, bottom = _terms(node.left), _terms(node.right)
        if top & _ANTHROPIC_READ and bottom and bottom <= _EXCLUDES_CACHED:
            return "the cached part is divided by a count that does not include it"
    return None


def _terms(node: ir.Node) -> set[str]:
    if isinstance(node, ir.Sum):
        sums = ir.spine(node)
        return _terms(sums[0].left).union(*(_terms(part.right) for part in sums))
    if isinstance(node, ir.Attr):
        return {node.name}
    if isinstance(node, ir.Index) and isinstance(node.key, ir.Const) and node.key.text:
        return {node.key.text}
    if isinstance(node, ir.Call):
        texts = {a.text for a in node.args if isinstance(a, ir.Const) and a.text}
        return texts | (_terms(node.args[0]) if node.args and not texts else set())
    if isinstance(node, ir.Group):
        found: set[str] = set()
        for part in node.parts:
            found |= _terms(part)
        return found
    return set()
