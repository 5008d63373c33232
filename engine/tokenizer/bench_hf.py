"""Speed of Hugging Face tokenizers, one thread, on the text of BenchmarkEncode, for comparison in one run:

    pip install tokenizers
    BENCH_TEXT=$PWD/text.txt go test -run '^$' -bench Encode ./engine/tokenizer && python engine/tokenizer/bench_hf.py text.txt

Prints MB/s and the number of tokens for each golden tokenizer; the token counts must agree.
"""
import os, sys, time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer

text = Path(sys.argv[1]).read_bytes().decode()
size = len(text.encode())
for name in ("smollm2", "qwen", "llama3", "gemma", "llama2"):
    t = Tokenizer.from_file(str(Path(__file__).parent / "testdata" / name / "tokenizer.json"))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        ids = t.encode(text, add_special_tokens=False).ids
        best = min(best, time.perf_counter() - start)
    print(f"{name:8} {size / best / 1e6:8.2f} MB/s {len(ids):8} tokens")
