"""Tokenizers of every family that pre-training meets, trained on this machine's texts, and texts to try them with."""

import json
import random
import unicodedata
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# Sets with &&, possessive quantifiers, an interval with a plus, word boundaries, a script.
ODD_PATTERN = (
    r"[\p{Han}]+|[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]++|\b\w+\b|\p{N}{1,3}+"
    r"|[[:space:]]+(?!\S)|\h{2,}|[\S\n]|\s"
)
DEEPSEEK_V2_SPLITS = [
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[一-龥ࠀ-一가-퟿]+",
]
DEEPSEEK_V3_SPLITS = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def training_texts(folders=("/usr/share/common-licenses", "/usr/share/doc"), limit_bytes=3_000_000):
    """Texts of the machine, and some of other scripts, which its documentation lacks."""
    texts, size = [], 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if size > limit_bytes:
                break
            if not path.is_file() or path.suffix in (".gz", ".png", ".pdf", ".xz"):
                continue
            text = path.read_bytes()[:200_000].decode("utf-8", "replace")
            texts.append(text)
            size += len(text)
    source = random.Random(1)
    for block in ((0x4E00, 0x5200), (0x3040, 0x30FF), (0xAC00, 0xB000), (0x400, 0x460), (0x5D0, 0x5EA), (0x621, 0x64A)):
        words = ["".join(chr(source.randrange(*block)) for _ in range(source.randint(1, 4))) for _ in range(400)]
        texts.append(" ".join(source.choice(words) for _ in range(20_000)))
    return texts


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, vocab_size=6000, special=(), texts=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_then_bytes(*patterns):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def hugging_face_tokenizers(texts):
    """Name and tokenizer, one a family."""
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|endoftext|>"], texts=texts)
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "gpt2", gpt2

    prefix = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special=["<s>", "</s>"], texts=texts)
    prefix.add_tokens(
        [
            AddedToken("  ", normalized=True),
            AddedToken("    ", normalized=True),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("[left]", lstrip=True, normalized=False),
            AddedToken("[right]", rstrip=True, normalized=True),
            AddedToken("[both]", lstrip=True, rstrip=True, single_word=True),
        ]
    )
    yield "prefix_space", prefix

    llama3 = byte_level(
        split_then_bytes(LLAMA3_PATTERN),
        ignore_merges=True,
        special=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
        texts=texts,
    )
    llama3.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))],
            ),
        ]
    )
    yield "llama3", llama3

    qwen = byte_level(
        split_then_bytes(QWEN_PATTERN), normalizer=normalizers.NFC(), special=["<|endoftext|>", "<|im_start|>"], texts=texts
    )
    qwen.add_tokens([AddedToken("<tool_call>", normalized=False, special=False), AddedToken("é́", normalized=True)])
    yield "qwen", qwen

    yield "nfkc", byte_level(
        split_then_bytes(O200K_PATTERN), normalizer=normalizers.Sequence([normalizers.NFKC()]), special=["<eos>"], texts=texts
    )
    yield "nfd", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.NFD(), texts=texts)
    yield "odd", byte_level(split_then_bytes(ODD_PATTERN), texts=texts)

    digits = pre_tokenizers.Digits(individual_digits=True)
    v2 = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK_V2_SPLITS]
        + [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    yield "deepseek_v2", byte_level(v2, special=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], texts=texts)
    yield "deepseek_v3", byte_level(
        split_then_bytes(*DEEPSEEK_V3_SPLITS), special=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], texts=texts
    )

    behaviors = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\p{P}"), "contiguous"),
            pre_tokenizers.Split(Regex(r"[aeiou]"), "removed"),
            pre_tokenizers.Split(Regex(r"\p{L}+"), "merged_with_previous", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    yield "behaviors", byte_level(behaviors, texts=texts)

    yield "byte_fallback", byte_fallback(texts, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    for scheme in ("always", "first", "never"):
        yield f"metaspace_{scheme}", byte_fallback(texts, None, pre_tokenizers.Metaspace("▁", scheme, split=scheme != "first"))


def byte_fallback(texts, normalizer, pre_tokenizer=None):
    """Llama 2's kind: characters, <0xNN> for those that are no token, `▁` for spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace("▁", "always")
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=300,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if normalizer is not None:
        # The words that it learnt stay the same when it is the normalizer that shows the spaces.
        description = json.loads(tokenizer.to_str())
        description["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(description))
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def sentencepiece_models(texts, folder):
    """Name and path, one a kind."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(line[:1000] for text in texts for line in text.splitlines()[:400]), encoding="utf-8")
    kinds = {
        "unigram": {"model_type": "unigram"},
        "bpe_fallback": {"model_type": "bpe", "byte_fallback": True, "split_digits": True},
        "identity": {
            "model_type": "bpe",
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "byte_fallback": True,
            "allow_whitespace_only_pieces": True,
            "user_defined_symbols": ["<tool>", "\n\n"],
        },
        "unknown": {"model_type": "unigram", "eos_id": -1, "normalization_rule_name": "nmt_nfkc_cf"},
    }
    for name, options in kinds.items():
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(folder / name),
            vocab_size=1500,
            character_coverage=0.98,
            max_sentence_length=4000,
            minloglevel=2,
            num_threads=2,
            hard_vocab_limit=False,
            **options,
        )
        yield name, folder / f"{name}.model"


def wild_text(source):
    """A random Unicode text; many kinds of trouble, often next to each other."""
    parts = []
    for _ in range(source.randint(0, 12)):
        kind = source.randrange(18)
        if kind == 0:
            parts.append("".join(chr(source.randrange(0x20, 0x7F)) for _ in range(source.randint(1, 12))))
        elif kind == 1:
            parts.append(source.choice([" ", "  ", "\n", "\r\n", "\t", "\n\n\n", "\u00a0", "\u2003", "\u3000", "\u0085", "    "]))
        elif kind == 2:  # a letter with marks in any order
            marks = [0x300, 0x301, 0x323, 0x327, 0x328, 0x345, 0x5B0, 0x64B, 0x93C, 0x1DFA, 0x20D0, 0x1AB0, 0x7FD]
            parts.append(source.choice("aeiouçñАдあか") + "".join(chr(source.choice(marks)) for _ in range(source.randint(1, 5))))
        elif kind == 3:  # emoji with modifiers, joiners, flags
            parts.append(source.choice(["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "🧑🏿‍🚀", "❤️", "🫠", "🪿", "🫩"]))
        elif kind == 4:  # right to left
            parts.append("".join(chr(source.randrange(0x5D0, 0x5EB)) for _ in range(3)) + "\u200f " + "مرحبا بكم")
        elif kind == 5:
            parts.append(source.choice(["\0", "\x01\x02", "\x7f", "\ufeff", "\ufffd", "\u200b\u200d", "\u202e", "\uffff"]))
        elif kind == 6:  # any character at all
            parts.append("".join(any_character(source) for _ in range(source.randint(1, 4))))
        elif kind == 7:
            parts.append("".join(chr(source.randrange(0x4E00, 0x9FFF)) for _ in range(source.randint(1, 6))))
        elif kind == 8:
            parts.append("".join(chr(source.randrange(0xAC00, 0xD7A4)) for _ in range(2)) + "\u1112\u1161\u11ab")
        elif kind == 9:
            parts.append(source.choice(["12", "1234567", "３４５", "½", "Ⅷ", "٣٤٥", "x²", "10\u20ac"]))
        elif kind == 10:
            parts.append(source.choice(["don't", "I'LL", "we'Ve", "it'ſ", "'S", "''re", "naïve", "ﬁne ﬀ", "Å Å", "e\u0301"]))
        elif kind == 11:
            parts.append(
                source.choice(
                    ["<|endoftext|>", "<|eot_id|>", "<s>", "</s>", "[left]", " [left] ", "[right]  ", " [both] ", "word", "words",
                     "sword", " word ", "<tool_call>", "<｜begin▁of▁sentence｜>", "<|im_start|>", "<0x0A>", "▁", "<tool>", "é́"]
                )
            )
        elif kind == 12:
            parts.append(source.choice(["!!!", "...", "—", "«»", "();", "{}[]", "\\n", "&&", "###", "$1,000.00", "a@b.c", "/*\n*/"]))
        elif kind == 13:  # characters of the newest Unicode versions
            parts.append(chr(source.choice([0x1C89, 0x31350, 0x2EBF0, 0x897, 0x10D40, 0x1FAE9, 0x10EFD, 0x1E4D0, 0x11F50, 0x1171E])))
        elif kind == 14:
            parts.append(source.choice(["the ", "of ", "license", "Software", " shall ", "GNU General Public License"]))
        elif kind == 15:
            parts.append(source.choice("aA1 \n!é中") * source.randint(1, 60))
        elif kind == 16:
            parts.append("".join(chr(source.randrange(0xA0, 0x250)) for _ in range(source.randint(1, 5))))
        else:
            parts.append("".join(chr(source.randrange(0xF900, 0xFFF0)) for _ in range(source.randint(1, 3))))
    return "".join(parts)


def any_character(source):
    while True:
        point = source.choice([source.randrange(0x110000), source.randrange(0x3000), source.randrange(0x20000)])
        if not 0xD800 <= point <= 0xDFFF:
            return chr(point)


def long_texts(source):
    """Lines of a megabyte: what has no structure must not take quadratic time."""
    yield "a" * 1_000_000
    yield " " * 1_000_000
    yield "\n" * 300_000 + "x"
    yield "ab1 " * 250_000
    yield "é" * 200_000
    yield "e\u0301\u0323" * 60_000
    yield "0123456789" * 50_000
    yield "".join(any_character(source) for _ in range(150_000))


def assigned_characters():
    """Every character, sixteen a text: alone at the ends, among others within."""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) != "Co"]
    return ["".join(map(chr, points[i : i + 16])) for i in range(0, len(points), 16)]
