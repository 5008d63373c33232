"""llama.cpp through the C API of llama-cpp-python, without sampling: one measurement for each line on stdin.

usage: llama_cpp_peer.py MODEL.gguf
A line is "THREADS PROMPT NEW"; the answer is the tokens a second of the prompt and
of the new tokens, and the tokens a second of processor time."""
import ctypes
import json
import random
import sys
import time

import llama_cpp as L

quiet = L.llama_log_callback(lambda *a: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
options = L.llama_model_default_params()
options.use_extra_bufts = False  # its AMX buffers crash on some machines; this kind of file gains nothing from others
model = L.llama_model_load_from_file(sys.argv[1].encode(), options)
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
contexts = {}
for line in sys.stdin:
    threads, prompt, new = map(int, line.split())
    c = contexts.get((threads, prompt, new))
    if c is None:
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = prompt + new + 64, 512, 512
        p.n_threads = p.n_threads_batch = threads
        c = contexts[threads, prompt, new] = L.llama_init_from_model(model, p)
    for measured in (False, True):
        L.llama_memory_clear(L.llama_get_memory(c), True)
        ids = (ctypes.c_int32 * prompt)(*(random.randrange(100, vocab) for _ in range(prompt)))
        one = (ctypes.c_int32 * 1)(5)
        t0, c0 = time.perf_counter(), time.process_time()
        L.llama_decode(c, L.llama_batch_get_one(ids, prompt))
        L.llama_get_logits_ith(c, -1)
        t1, c1 = time.perf_counter(), time.process_time()
        for _ in range(new if measured else 1):
            L.llama_decode(c, L.llama_batch_get_one(one, 1))
            L.llama_get_logits_ith(c, -1)
        t2, c2 = time.perf_counter(), time.process_time()
    print(json.dumps({"prefill": prompt / (t1 - t0), "decode": new / (t2 - t1),
                      "prefill_cpu": prompt / (c1 - c0), "decode_cpu": new / (c2 - c1)}), flush=True)
