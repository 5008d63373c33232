"""Writes nvfp4_global.safetensors: MLX nvfp4 with a scale for the whole tensor (pip install "mlx[cpu]" numpy; mlx 0.32.4).

usage: python gen_nvfp4_global.py OUT_FILE
"""
import sys
import mlx.core as mx, numpy as np
w = mx.array(np.random.default_rng(5).normal(0, 1, (4, 64)).astype(np.float32))
g = mx.abs(w).max()
packed, scales = mx.quantize(w, mode="nvfp4", group_size=16, bits=4, global_scale=g)[:2]
dequant = mx.dequantize(packed, scales, mode="nvfp4", group_size=16, bits=4, global_scale=g, dtype=mx.float32)
mx.save_safetensors(sys.argv[1], {"p.weight": packed, "p.scales": scales, "p.global_scale": g.reshape(1), "dequant": dequant})
