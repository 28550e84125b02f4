"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from ...sessions.errors import ModelError
from .end_of_turn import END_OF_TURN_NAMES
from .sentencepiece_merges import merges_by_score
from .tokenizer import SpecialTokens

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type
_PREFIX = "tokenizer.ggml."
_METASPACE = "▁"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

GGUFTokenizer = tuple[tokenizers.Tokenizer, SpecialTokens, str | None]


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> GGUFTokenizer:
    """The backend, the roles of its special tokens, and the chat template if the file has one.

    Raises:
        ModelError: keys are missing or of the wrong kind, or the tokenizer or its pre-tokeniser is not known.
    """
    tokens, types = _tokens(metadata)
    kind = metadata.get(f"{_PREFIX}model")
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend = _sentencepiece(metadata, tokens, types)
    else:
        raise ModelError(
            f"the tokenizer {kind!r} is not known", field=f"{_PREFIX}model", remedy="known are gpt2 (BPE) and llama"
        )
    for code in (_CONTROL, _USER_DEFINED):
        added = [text for text, token_type in zip(tokens, types, strict=True) if token_type == code]
        backend.add_tokens([AddedToken(text, special=code == _CONTROL, normalized=False) for text in added])
    special = _special_tokens(metadata, tokens, types)
    if special.bos_token_id is not None and metadata.get(f"{_PREFIX}add_bos_token", kind == "llama"):
        bos = special.variables["bos_token"]
        first = [(bos, special.bos_token_id)]
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=first)
    template = metadata.get("tokenizer.chat_template")
    return backend, special, template if isinstance(template, str) else None


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    tokens, types = metadata.get(f"{_PREFIX}tokens"), metadata.get(f"{_PREFIX}token_type")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError("the file holds no tokenizer", field=f"{_PREFIX}tokens")
    codes = [1] * len(tokens) if types is None else [int(code) for code in types]
    if len(codes) != len(tokens):
        raise ModelError(f"{len(codes)} token types for {len(tokens)} tokens", field=f"{_PREFIX}token_type")
    return tokens, codes


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    name = metadata.get(f"{_PREFIX}pre", "default")
    build = _PRE_TOKENIZERS.get(name)
    if build is None:
        raise ModelError(
            f"the pre-tokeniser {name!r} is not known",
            field=f"{_PREFIX}pre",
            remedy=f"known are {', '.join(sorted(_PRE_TOKENIZERS))}",
        )
    merges = metadata.get(f"{_PREFIX}merges")
    if not isinstance(merges, list):
        raise ModelError("the file holds no merges", field=f"{_PREFIX}merges")
    pairs = [_pair(merge) for merge in merges]
    backend = tokenizers.Tokenizer(_bpe(tokens, pairs, ignore_merges=name in _WHOLE_WORDS_FIRST))
    backend.pre_tokenizer = build()
    backend.decoder = decoders.ByteLevel()
    if name in ("qwen2", "deepseek-r1-qwen"):
        backend.normalizer = normalizers.NFC()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelError(f"the merge {merge!r} is not two tokens", field=f"{_PREFIX}merges")
    return left, right


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocabulary = {text: index for index, text in enumerate(tokens)}
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:
        raise ModelError(f"the tokenizer's merges do not fit its tokens: {error}", field=f"{_PREFIX}merges") from error


def _smollm() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _split_by(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


_PRE_TOKENIZERS: Mapping[Any, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _split_by(_LLAMA3_SPLIT),
    "llama3": _split_by(_LLAMA3_SPLIT),
    "llama-v3": _split_by(_LLAMA3_SPLIT),
    "qwen2": _split_by(_QWEN2_SPLIT),
    "deepseek-r1-qwen": _split_by(_QWEN2_SPLIT),
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3"})  # a word that is a token is never merged up


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    scores = metadata.get(f"{_PREFIX}scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError("the file holds no score for each token", field=f"{_PREFIX}scores")
    words = [index for index, code in enumerate(types) if code not in (_UNKNOWN, _CONTROL, _BYTE)]
    merges = merges_by_score([tokens[index] for index in words], [float(scores[index]) for index in words])
    unknown = [tokens[index] for index, code in enumerate(types) if code == _UNKNOWN]
    unk_token = unknown[0] if unknown else None
    backend = tokenizers.Tokenizer(_bpe(tokens, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Replace(" ", _METASPACE)]
    after = [decoders.Replace(_METASPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(f"{_PREFIX}add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_METASPACE), *spaces])
        backend.decoder = decoders.Sequence([*after, decoders.Strip(content=" ", left=1, right=0)])
    else:
        backend.normalizer = normalizers.Sequence(spaces)
        backend.decoder = decoders.Sequence(after)
    return backend


def _special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> SpecialTokens:
    def of_role(role: str) -> int | None:
        token_id = metadata.get(f"{_PREFIX}{role}_token_id")
        if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < len(tokens)):
            raise ModelError(f"{role}_token_id is {token_id!r}", field=f"{_PREFIX}{role}_token_id")
        return token_id

    by_name = {tokens[index]: index for index, code in enumerate(types) if code == _CONTROL}
    ends = {of_role("eos"), of_role("eot"), of_role("eom"), *(by_name.get(name) for name in END_OF_TURN_NAMES)}
    roles = {variable: of_role(role) for variable, role in _ROLES.items()}
    names = {variable: tokens[token_id] for variable, token_id in roles.items() if token_id is not None}
    return SpecialTokens(frozenset(end for end in ends if end is not None), of_role("bos"), names)
