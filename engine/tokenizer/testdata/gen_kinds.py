"""Records what Hugging Face tokenizers does for small tokenizers of many kinds.

Usage: pip install tokenizers==0.23.3 sentencepiece protobuf; python gen_kinds.py OUT_DIR [RANDOM_TEXTS]
Writes OUT_DIR/<kind>.json: {"tokenizer": tokenizer.json, "cases": [{text, ids, ids_no_special, decoded, decoded_skip_special}]}.
Also writes OUT_DIR/../sentencepiece.json, a SentencePiece BPE model with its pieces, scores, types and ids.
RANDOM_TEXTS (default 12) random texts are added to the fixed ones for each kind.
"""
import base64, io, json, random, sys
from pathlib import Path
import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers as pre, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel

OUT, N = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12
OUT.mkdir(parents=True, exist_ok=True)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It was the best of times.", "I've said they're fine; we'll see, DON'T you think?",
    "El niño comió mañana. Über Straße, naïve café", "Привет, мир! Как дела?", "漢字とかな、カタカナ。中文测试文本。한국어 텍스트입니다.",
    "Numbers: 1 12 123 1234 12345 3.14159", "emoji 😀 👍🏽 👩‍👩‍👧", "tabs\tand  double   spaces\n\nand\r\nnewlines\n", "def main():\n    return None\n",
    "camelCase HTMLParser ABCdef Ünïcödé हिन्दी العربية",
] * 4
TEXTS = [
    "", " ", "  two  spaces ", "a", "Hello, world!", "don't DON'T it's we'LL 'S'ſ x'ſ", "x\n\n y\r\n\tz \n", "1 12 123 1234 12345 v1.2", "٣٤٥ ⅷ ² ½ 12３",
    "café cafe\u0301 e\u0301\u0300\u0302 a\u0300bc", "ﬁ ﬂ Ω Å ﬅ ŉ İstanbul ẞ", "漢字 한국어 \u1112\u1161\u11ab ไทย", "😀 👍🏽 👩‍👩‍👧 🇫🇷", "HTMLParser camelCase ABC中DEf Ǆa ʰA ⅣB",
    "foo_bar-baz/qux?a=b&c[d]{e}!!\n/x", "--- ... ==/\n//", "\u00a0\u2003\u3000x\u200bx\ufeff", "a\x00b\x01\x7f\x85", "हिन्दी पाठ العربية", "<s>Hi</s> <unk>", " <mask> [A] <b> word<w>word <w> x<w> <n>Ö</n> <N>ö</N>",
    "▁meta ▁▁x ▁", "\ufffd\u2028\u2029\U0010ffff", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ab" * 50,
]
ALPHABET = list("abcxyzABCXYZ  \n\t\r'._-/!<>[]0123459éÉßſñıİ") + ["'s", "'LL", "'re", " the", "漢", "字", "か", "한", "й", "Ж", "ʰ", "ǅ", "\u0301", "\u0300", "\u093f", "😀", "\u200d", "½", "٣", "Ⅳ",
    "\u00a0", "\u3000", "▁", "<b>", "<w>", "<mask>", "[A]", "ﬁ", "Å", "\u1112\u1161\u11ab", "\r\n", "_"]


def texts(seed):
    r = random.Random(seed)
    return TEXTS + ["".join(r.choice(ALPHABET) for _ in range(r.randrange(1, 40))) for _ in range(N)]


def bpe(pre_tok, norm=None, dec=None, post=None, size=420, byte_level=True, **model):
    t = Tokenizer(models.BPE(**model))
    if norm: t.normalizer = norm
    if pre_tok: t.pre_tokenizer = pre_tok
    if dec: t.decoder = dec
    alphabet = sorted(ByteLevel.alphabet()) if byte_level else []
    special = [model["unk_token"]] if "unk_token" in model else []
    kw = {k: model[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in model}
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False, **kw))
    if post: t.post_processor = post(t)
    return t


def split_bytes(*patterns, digits=None):
    parts = [pre.Split(Regex(p), "isolated") for p in patterns]
    return pre.Sequence(parts + [ByteLevel(add_prefix_space=False, use_regex=False)])


C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TAILS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LEAD = r"[^\r\n\p{L}\p{N}]?"
DEEPSEEK = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
HAN = lambda c: c[:-1] + r"&&[^\p{Han}]]"
PATTERNS = {
    "qwen2": [C + "|" + LEAD + r"\p{L}+|\p{N}" + TAIL],
    "llama3": [C + "|" + LEAD + r"\p{L}+|\p{N}{1,3}" + TAIL],
    "dbrx": [r"'(?i:[sdmt]|ll|ve|re)|" + LEAD + r"\p{L}+|\p{N}{1,3}" + TAIL],
    "qwen35": [C + "|" + LEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "o200k": [LEAD + UP + "*" + LOW + "+" + C + "?|" + LEAD + UP + "+" + LOW + "*" + C + r"?|\p{N}{1,3}" + TAILS],
    "tekken": [LEAD + UP + "*" + LOW + "+|" + LEAD + UP + "+" + LOW + r"*|\p{N}" + TAILS],
    "deepseek3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK],
    "bailing": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "bloom": [" ?[^(\\s|[.,!?…。，、।۔،])]+"],
    "exaone-moe": [C + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + LEAD + HAN(UP) + "*" + HAN(LOW) + "+" + C + "?|" + LEAD + HAN(UP) + "+" + HAN(LOW) + "*" + C + r"?|\p{N}{1,3}" + TAIL],
    "cl100k": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
}
KINDS = {f"split-{k}": (lambda v=v: bpe(split_bytes(*v), dec=decoders.ByteLevel())) for k, v in PATTERNS.items()}
KINDS["gpt2"] = lambda: bpe(ByteLevel(add_prefix_space=False), dec=decoders.ByteLevel())
KINDS["gpt2-prefix-space"] = lambda: bpe(ByteLevel(add_prefix_space=True), dec=decoders.ByteLevel(), post=lambda t: processors.ByteLevel(trim_offsets=True))
KINDS["falcon"] = lambda: bpe(pre.Sequence([pre.Punctuation("contiguous"), ByteLevel(add_prefix_space=False), pre.Digits(individual_digits=False), pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), dec=decoders.ByteLevel())
KINDS["byte-level-normalizer"] = lambda: bpe(None, norm=normalizers.Sequence([normalizers.NFC(), normalizers.ByteLevel()]), dec=decoders.ByteLevel())
for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
    for invert in (False, True):
        KINDS[f"behavior-{behavior}{'-inverted' if invert else ''}"] = lambda b=behavior, i=invert: bpe(pre.Split(Regex(r"\s|\d+|[aeiou]"), b, i), byte_level=False, size=300, unk_token="<unk>")
for name, p in {"whitespace": pre.Whitespace(), "whitespace-split": pre.WhitespaceSplit(), "bert": pre.BertPreTokenizer(), "punctuation": pre.Punctuation(), "digits": pre.Digits(), "char-delimiter": pre.CharDelimiterSplit("e")}.items():
    KINDS[f"pre-{name}"] = lambda p=p: bpe(p, byte_level=False, size=300, unk_token="<unk>")
KINDS["fuse-unk"] = lambda: bpe(pre.Whitespace(), byte_level=False, size=260, unk_token="<unk>", fuse_unk=True)
KINDS["subword-prefix"] = lambda: bpe(pre.Whitespace(), byte_level=False, size=300, unk_token="<unk>", continuing_subword_prefix="##")
KINDS["word-suffix"] = lambda: bpe(pre.Whitespace(), norm=normalizers.Lowercase(), byte_level=False, size=300, unk_token="<unk>", end_of_word_suffix="</w>")
NORMS = {"nfc": normalizers.NFC(), "nfd": normalizers.NFD(), "nfkc": normalizers.NFKC(), "nfkd": normalizers.NFKD(), "lowercase": normalizers.Lowercase(), "nmt": normalizers.Nmt(),
    "strip": normalizers.Strip(), "strip-left": normalizers.Strip(True, False), "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "replace": normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}|\d"), "#"), normalizers.Replace("a", "bb"), normalizers.Prepend("^")])}
for name, n in NORMS.items():
    KINDS[f"norm-{name}"] = lambda n=n: bpe(split_bytes(r"\s+"), norm=n, dec=decoders.ByteLevel(), size=300)


def added():
    t = bpe(ByteLevel(add_prefix_space=False), norm=normalizers.Lowercase(), dec=decoders.ByteLevel())
    t.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True), AddedToken("<mask>", lstrip=True, special=True), AddedToken("[A]", rstrip=True, special=True)])
    t.add_tokens([AddedToken("<b>", lstrip=True, rstrip=True), AddedToken("<w>", single_word=True, normalized=False), AddedToken("<n>Ö</n>", normalized=True), AddedToken("<w", normalized=False)])
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<s> $A </s> </s>", pair="<s> $A $B", special_tokens=[("<s>", t.token_to_id("<s>")), ("</s>", t.token_to_id("</s>"))])])
    return t
KINDS["added"] = added


def roberta():
    t = bpe(ByteLevel(add_prefix_space=False), dec=decoders.ByteLevel())
    t.add_special_tokens(["<s>", "</s>"])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t
KINDS["roberta"] = roberta


def unigram(norm, scheme, split=True, byte_fallback=False, size=400, template=True):
    t = Tokenizer(models.Unigram())
    t.normalizer = norm
    t.pre_tokenizer = pre.Metaspace(prepend_scheme=scheme, split=split)
    t.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=size, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False))
    if byte_fallback:
        j = json.loads(t.to_str())
        worst = min(s for _, s in j["model"]["vocab"])
        j["model"]["vocab"] += [[f"<0x{b:02X}>", worst - 1] for b in range(256)]
        j["model"]["byte_fallback"] = True
        j["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, j["decoder"]]}
        t = Tokenizer.from_str(json.dumps(j))
    if template:
        t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", t.token_to_id("</s>"))])
    return t


def charsmap():
    """A small compiled replacement table (the full NFKC one has 300 kB)."""
    rules = {"Å": "A", "ﬁ": "fi", "e\u0301": "é", "e\u0301\u0300": "E", "\t": " ", "\n": " ", "\r": " ", "½": "1/2", "\u200b": "", "Ω": "O", "か\u3099": "が", "\u1112\u1161\u11ab": "한", "İ": "I"}
    tsv = OUT / "rules.tsv"
    tsv.write_text("".join(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v) + "\n" for k, v in rules.items()))
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=200, normalization_rule_tsv=str(tsv), hard_vocab_limit=False, minloglevel=2)
    tsv.unlink()
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto(); m.ParseFromString(model.getvalue())
    return m.normalizer_spec.precompiled_charsmap


KINDS["unigram-precompiled"] = lambda: unigram(normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]), "always")
KINDS["unigram-first"] = lambda: unigram(normalizers.NFKC(), "first", template=False)
KINDS["unigram-never"] = lambda: unigram(normalizers.NFKC(), "never", split=False)
KINDS["unigram-bytes"] = lambda: unigram(normalizers.NFKC(), "always", byte_fallback=True)
KINDS["metaspace-bpe"] = lambda: bpe(pre.Metaspace(prepend_scheme="first"), dec=decoders.Metaspace(prepend_scheme="first"), byte_level=False, size=320, unk_token="<unk>")

for name, make in KINDS.items():
    t = make()
    rows = []
    for s in texts(name):
        e, e0 = t.encode(s), t.encode(s, add_special_tokens=False)
        rows.append(dict(text=s, ids=e.ids, ids_no_special=e0.ids, decoded=t.decode(e0.ids, skip_special_tokens=False), decoded_skip_special=t.decode(e.ids, skip_special_tokens=True)))
    (OUT / f"{name}.json").write_text(json.dumps(dict(tokenizer=json.loads(t.to_str()), cases=rows), ensure_ascii=True, separators=(",", ":")) + "\n")

model = io.BytesIO()
spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
    remove_extra_whitespaces=False, hard_vocab_limit=False, split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<w>"], minloglevel=2)
sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
kind = lambda i: 2 if sp.IsUnknown(i) else 3 if sp.IsControl(i) else 6 if sp.IsByte(i) else 5 if sp.IsUnused(i) else 4 if sp.IdToPiece(i) == "<w>" else 1
size = sp.GetPieceSize()
plain = [s for s in texts("sentencepiece") if not any(x in s for x in ("<s>", "</s>", "<unk>", "\0", "<w>", "▁"))]
(OUT.parent / "sentencepiece.json").write_text(json.dumps(dict(tokens=[sp.IdToPiece(i) for i in range(size)], scores=[sp.GetScore(i) for i in range(size)], types=[kind(i) for i in range(size)],
    cases=[dict(text=s, ids=sp.EncodeAsIds(s), decoded=sp.Decode(sp.EncodeAsIds(s))) for s in plain])) + "\n")
