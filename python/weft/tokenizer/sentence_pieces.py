"""Converts SentencePiece models (`tokenizer.model`) to tokenizers of the tokenizers library.

The model file has everything: the pieces with their scores, the normalization, and whether unknown characters become
bytes. The result is compared with SentencePiece itself before it is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from weft.errors import TokenizerError

NEEDED = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf"}
"""Modules that read a SentencePiece model, and their packages on PyPI."""
SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The types of pieces."""
UNIGRAM, BPE = 1, 2
"""The types of models."""
NAMED = ("bos", "eos", "unk", "pad")

PROBES = (
    "Hello world, it's 12345.678 and 3,141!",
    "two  spaces, three   more;\ttabs\tand\nlines\r\n\n\n  indented",
    "naïve café — Grüße, ﬁne ½ № ™ ﷺ",
    "日本語のテキスト。中文字符。한국어 텍스트. עברית العربية हिन्दी ไทย",
    "emoji 👩‍👩‍👧 🇩🇪 ☃️ and \u200b zero width, combining e\u0301 a\u030a",
    'def f(x):\n    return {"a": [x ** 2, None]}  # comment',
    "CamelCase snake_case kebab-case https://example.org/a?b=c&d=%20",
    "x",
)
"""Texts on which a converted tokenizer must agree with SentencePiece. None begins with a space: a tokenizer of the
tokenizers library puts no second space before such a text."""


def is_sentencepiece(file: Path) -> bool:
    """Whether a file is SentencePiece's protocol buffer, not tiktoken's lines of base64 and ranks."""
    # The protocol buffer begins with the tag of its first field, 0x0A.
    with file.open("rb") as stream:
        return stream.read(1) == b"\n"


def convert(file: Path, settings: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Convert a SentencePiece model. Returns the tokenizer and its settings, as in
    tokenizer_config.json.

    `settings` are those of tokenizer_config.json; `add_prefix_space` and `legacy` have an effect. Raises
    `TokenizerError`, also if the result differs from SentencePiece.
    """
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        raise TokenizerError(
            f"{file} is SentencePiece's, and there is no tokenizer.json; to convert it, "
            f"pip install {' '.join(missing)}"
        )
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's error, which has several types
        raise TokenizerError(f"{file}: can't be read as a SentencePiece model: {error}") from error
    backend = built(file, model, settings)
    _check(file, backend)
    # Directories give names to unused pieces.
    listed = {int(number): given for number, given in (settings.get("added_tokens_decoder") or {}).items()}
    pieces = {i: model.pieces[i] for i in listed if i < len(model.pieces)}
    renamed = [i for i, piece in pieces.items() if piece.piece != listed[i]["content"]]
    for i in renamed:
        pieces[i].piece = listed[i]["content"]
        pieces[i].type = CONTROL if listed[i].get("special") else USER_DEFINED
    return built(file, model, settings) if renamed else backend, _names(model)


def built(file: Path, model: Any, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a SentencePiece model, which is a `ModelProto` or an object with its fields `pieces`,
    `trainer_spec` and `normalizer_spec`. Arguments and errors as in `convert`, but for the comparison."""
    backend = Tokenizer(_model(file, model))
    _assemble(backend, model, settings)
    backend.add_tokens(_added(model))
    return backend


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _model(file: Path, model: Any) -> models.Model:
    spec, pieces = model.trainer_spec, model.pieces
    if spec.model_type not in (UNIGRAM, BPE) or spec.treat_whitespace_as_suffix:
        kind = "marks the ends of words" if spec.treat_whitespace_as_suffix else "is neither BPE nor Unigram"
        raise TokenizerError(f"{file}: weft can't convert a SentencePiece model that {kind}")
    if spec.model_type == BPE:
        return models.BPE(
            vocab={piece.piece: i for i, piece in enumerate(pieces)},
            merges=_merges({piece.piece: piece.score for piece in pieces if piece.type == NORMAL}),
            unk_token=pieces[spec.unk_id].piece,
            fuse_unk=True,
            byte_fallback=spec.byte_fallback,
        )
    # Control pieces must not be better than any normal piece, nor lower the smallest score, from which the score of an
    # unknown character follows. SentencePiece computes the scores of user-defined pieces like this.
    normal = [piece.score for piece in pieces if piece.type == NORMAL] or [0.0]
    scores = {
        piece.piece: len(piece.piece.encode()) * max(normal) - 0.1
        if piece.type == USER_DEFINED
        else min(normal)
        for piece in pieces
        if piece.type != NORMAL
    }
    vocab = [(piece.piece, scores.get(piece.piece, piece.score)) for piece in pieces]
    return models.Unigram(vocab=vocab, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that join to a piece. The pairs of the piece with the highest score come first."""
    ordered = sorted(scores, key=lambda piece: -scores[piece])
    splits = ((piece[:i], piece[i:]) for piece in ordered for i in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in scores and right in scores]


def _assemble(backend: Tokenizer, model: Any, settings: dict[str, Any]) -> None:
    """Set the tokenizer's normalizer, pre-tokenizer and decoder."""
    rules = model.normalizer_spec
    prefix = settings.get("add_prefix_space")
    has_prefix = rules.add_dummy_prefix if prefix is None else bool(prefix)
    steps: list[Any] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        # A text's first space becomes its prefix.
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=not has_prefix)]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # Without "legacy", no space follows a special token inside a text.
    scheme = ("always" if settings.get("legacy") else "first") if has_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1, right=0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _added(model: Any) -> list[AddedToken]:
    """Control tokens are special. User-defined pieces of BPE models are not; SentencePiece searches for them in
    normalized text before anything else."""
    searched = (
        (UNKNOWN, CONTROL, USER_DEFINED) if model.trainer_spec.model_type == BPE else (UNKNOWN, CONTROL)
    )
    return [
        AddedToken(piece.piece, special=piece.type != USER_DEFINED, normalized=piece.type == USER_DEFINED)
        for piece in model.pieces
        if piece.type in searched
    ]


def _names(model: Any) -> dict[str, str]:
    ids = {name: getattr(model.trainer_spec, f"{name}_id") for name in NAMED}
    return {f"{name}_token": model.pieces[i].piece for name, i in ids.items() if 0 <= i < len(model.pieces)}


def _check(file: Path, backend: Tokenizer) -> None:
    """Raise `TokenizerError` if the tokenizer and SentencePiece encode one of `PROBES` differently."""
    from sentencepiece import SentencePieceProcessor

    original = SentencePieceProcessor(model_file=str(file))
    for text in PROBES:
        if backend.encode(text, add_special_tokens=False).ids != original.encode(text):
            raise TokenizerError(
                f"{file}: the converted tokenizer would encode {text!r} differently from SentencePiece; save the "
                "tokenizer with a tokenizer.json (transformers' AutoTokenizer and save_pretrained)"
            )
