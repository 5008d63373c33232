#!/usr/bin/env python3
"""Write dynamic_rope.safetensors: logits of ../../testdata/models/llama/smollm2 with dynamic rope scaling, one token
at a time, as mlx-lm computes them. (Fed in chunks, mlx-lm rotates by the length at the end of the chunk.)

    pip install "mlx[cpu]==0.32.4" "mlx-lm==0.32.2" && python gen_dynamic_rope.py
"""
import os
import pathlib

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)
here = pathlib.Path(os.path.abspath(__file__)).parent
model, _ = load_model(here / "../../testdata/models/llama/smollm2", lazy=False, model_config={
    "rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16,
})
model.set_dtype(mx.float32)
ids = [int(i) for i in np.random.default_rng(5).integers(1, 160, 40)]
cache, rows = make_prompt_cache(model), []
for i in ids:
    rows.append(model(mx.array([[i]]), cache=cache)[0, 0])
mx.save_safetensors(str(here / "dynamic_rope.safetensors"), {"ids": mx.array(ids).astype(mx.float32), "logits": mx.stack(rows)})
