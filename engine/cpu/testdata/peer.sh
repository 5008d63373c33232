#!/usr/bin/env bash
# Builds llama.cpp, which measurements run in turns with ours, from its package for
# Python: OUT/native for this machine and, on x86-64, OUT/avx2 with nothing newer
# than AVX2. Needs a C++ compiler; about eight minutes each on two cores. Runs once.
set -euo pipefail
out=$1
build() { # NAME CMAKE-ARGUMENTS
  [ -f "$out/$1/done" ] && return
  rm -rf "${out:?}/$1"
  python3 -m venv "$out/$1"
  # No cache: it keeps one build whatever the arguments are.
  CMAKE_ARGS=$2 "$out/$1/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
  touch "$out/$1/done"
}
mkdir -p "$out"
build native "-DGGML_NATIVE=ON"
if [ "$(uname -m)" = x86_64 ]; then
  build avx2 "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
fi
