"""Writes the GGUF fixtures with the `gguf` Python package (pip install gguf numpy safetensors).

usage: python gen_gguf.py OUT_DIR [CONVERTER]

blocks.gguf             one matrix per block kind: random codes and scales, among them negative, subnormal and zero ones
blocks.safetensors      the float32 values gguf.quants gives for them
tiny-llama.gguf         a llama with Q4_1 matrices, a Q8_0 embedding, F32 norms and permuted q and k rows
tiny-llama.safetensors  its affine twin: the output of CONVERTER (goldens convert_smollm2.py GGUF OUT) on tiny-llama.gguf
"""
import os, shutil, subprocess, sys, tempfile
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, quants
from safetensors.numpy import save_file

out = sys.argv[1]
rng = np.random.default_rng(7)


def halves(n):
    v = rng.normal(0, 0.02, n).astype(np.float16)
    v[0], v[1 % n], v[2 % n] = 0, 3e-7, -0.01  # zero, subnormal, negative
    return v.view(np.uint8).reshape(n, 2)


def random_blocks(t, rows, cols):
    size, width = gguf.GGML_QUANT_SIZES[t]
    n = rows * cols // size
    b = rng.integers(0, 256, (n, width), dtype=np.uint8)
    # positions of the float16 numbers, so that they are not NaN or infinite
    for at in {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2],
               T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.MXFP4: []}[t]:
        b[:, at:at + 2] = halves(n)
    if t == T.MXFP4:
        b[:, 0] = rng.integers(110, 140, n)
        b[:5, 0] = [0, 1, 2, 127, 250]
    return b.reshape(rows, -1)


w = gguf.GGUFWriter(os.path.join(out, "blocks.gguf"), "test")
expected = {}
for t in [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.MXFP4]:
    raw = random_blocks(t, 3, 512)
    w.add_tensor(t.name.lower() + ".weight", raw, raw_dtype=t)
    expected[t.name.lower()] = quants.dequantize(raw, t).astype(np.float32).reshape(3, 512)
raw = random_blocks(T.Q4_K, 6, 256).reshape(2, 3, -1)
w.add_tensor("experts.weight", raw, raw_dtype=T.Q4_K)
expected["experts"] = quants.dequantize(raw, T.Q4_K).astype(np.float32).reshape(6, 256)
f = rng.normal(0, 1, (3, 40)).astype(np.float32)
w.add_tensor("f32.weight", f); expected["f32"] = f
w.add_tensor("f16.weight", f.astype(np.float16)); expected["f16"] = f.astype(np.float16).astype(np.float32)
bf = quants.quantize(f, T.BF16)
w.add_tensor("bf16.weight", bf, raw_dtype=T.BF16); expected["bf16"] = quants.dequantize(bf, T.BF16).astype(np.float32).reshape(3, 40)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
save_file(expected, os.path.join(out, "blocks.safetensors"))

H, KV, D, HID, FF, V, L = 4, 2, 16, 64, 96, 40, 2
path = os.path.join(out, "tiny-llama.gguf")
w = gguf.GGUFWriter(path, "llama")
w.add_name("tiny llama"); w.add_context_length(256); w.add_embedding_length(HID); w.add_block_count(L); w.add_feed_forward_length(FF)
w.add_head_count(H); w.add_head_count_kv(KV); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(D); w.add_rope_freq_base(100000.0)
w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("smollm")
w.add_token_list([f"t{i}" for i in range(V)]); w.add_token_types([3] * 3 + [1] * (V - 3)); w.add_token_merges(["t 1", "t 2"])
w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_pad_token_id(2); w.add_chat_template("{{ messages }}")


def matrix(name, rows, cols, t):
    w.add_tensor(name + ".weight", quants.quantize(rng.normal(0, 0.1, (rows, cols)).astype(np.float32), t), raw_dtype=t)


matrix("token_embd", V, HID, T.Q8_0)
for i in range(L):
    b = f"blk.{i}."
    w.add_tensor(b + "attn_norm.weight", rng.normal(1, 0.1, HID).astype(np.float32))
    w.add_tensor(b + "ffn_norm.weight", rng.normal(1, 0.1, HID).astype(np.float32))
    for name, rows, cols in [("attn_q", H * D, HID), ("attn_k", KV * D, HID), ("attn_v", KV * D, HID), ("attn_output", HID, H * D),
                             ("ffn_gate", FF, HID), ("ffn_up", FF, HID), ("ffn_down", HID, FF)]:
        matrix(b + name, rows, cols, T.Q4_1)
w.add_tensor("output_norm.weight", rng.normal(1, 0.1, HID).astype(np.float32))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
if len(sys.argv) > 2:
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([sys.executable, sys.argv[2], path, d], check=True)
        shutil.copy(os.path.join(d, "model.safetensors"), os.path.join(out, "tiny-llama.safetensors"))
