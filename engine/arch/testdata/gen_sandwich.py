#!/usr/bin/env python3
"""Write sandwich/: a tiny random model of the test-only family of ../sandwich_test.go, and the logits that this
float64 numpy implementation gives for one prompt.

    pip install numpy && python gen_sandwich.py
"""
import json
import os
import struct

import numpy as np

H, L, HEADS, KV, D, I, V, EPS, THETA = 24, 2, 4, 2, 8, 40, 64, 1e-5, 10000.0
rng = np.random.default_rng(11)
out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandwich")
os.makedirs(out, exist_ok=True)


def save(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        raw = tensors[name].astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


W = {"model.embed_tokens.weight": rng.standard_normal((V, H)) * 0.5, "model.norm.weight": 1 + rng.standard_normal(H) * 0.2}
for i in range(L):
    p = f"model.layers.{i}."
    for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
        W[p + norm + ".weight"] = 1 + rng.standard_normal(H) * 0.2
    for name, (rows, cols) in {
        "self_attn.q_proj": (HEADS * D, H), "self_attn.k_proj": (KV * D, H), "self_attn.v_proj": (KV * D, H),
        "self_attn.gate_proj": (HEADS * D, H), "self_attn.o_proj": (H, HEADS * D),
        "mlp.gate_proj": (I, H), "mlp.up_proj": (I, H), "mlp.down_proj": (H, I),
    }.items():
        W[p + name + ".weight"] = rng.standard_normal((rows, cols)) * 1.4 / np.sqrt(cols)
W = {k: v.astype(np.float32).astype(np.float64) for k, v in W.items()}


def rms(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rope(x):
    angle = np.arange(x.shape[0])[:, None] * THETA ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def forward(ids):
    T = len(ids)
    x = W["model.embed_tokens.weight"][ids]
    for i in range(L):
        w = lambda name: W[f"model.layers.{i}.{name}.weight"]
        h = rms(x, w("input_layernorm"))
        q = rope((h @ w("self_attn.q_proj").T).reshape(T, HEADS, D))
        k = rope((h @ w("self_attn.k_proj").T).reshape(T, KV, D)).repeat(HEADS // KV, 1)
        v = (h @ w("self_attn.v_proj").T).reshape(T, KV, D).repeat(HEADS // KV, 1)
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(D)
        s = np.where(np.tri(T, dtype=bool), s, -np.inf)
        s = np.exp(s - s.max(-1, keepdims=True))
        a = np.einsum("hqk,khd->qhd", s / s.sum(-1, keepdims=True), v).reshape(T, -1)
        a = a * sigmoid(h @ w("self_attn.gate_proj").T)
        x = x + rms(a @ w("self_attn.o_proj").T, w("post_attention_layernorm"))
        h = rms(x, w("pre_feedforward_layernorm"))
        g = h @ w("mlp.gate_proj").T
        y = (g * sigmoid(g) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        x = x + rms(y, w("post_feedforward_layernorm"))
    return rms(x, W["model.norm.weight"]) @ W["model.embed_tokens.weight"].T


ids = rng.integers(0, V, 14)
save(os.path.join(out, "model.safetensors"), W)
save(os.path.join(out, "golden.safetensors"), {"logits": forward(ids), "ids": ids.astype(np.float64)})
with open(os.path.join(out, "config.json"), "w") as f:
    json.dump({
        "model_type": "sandwich", "hidden_size": H, "num_hidden_layers": L, "intermediate_size": I, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": D, "vocab_size": V, "rms_norm_eps": EPS, "rope_theta": THETA,
    }, f, indent=1)
    f.write("\n")
