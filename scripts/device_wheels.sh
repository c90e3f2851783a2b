#!/usr/bin/env bash
# Build the wheels that scripts/device_check.sh installs: ours, and what the device machine lacks.
#   [PEERS=1] scripts/device_wheels.sh [WHEELS]
# PEERS=1: also what transformers' own quantized models need there, into WHEELS/peers (7 MB); PEERS=all: with
# bitsandbytes (60 MB more).
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-.wheels}
python=${PYTHON:-.venv/bin/python}
peers=(compressed-tensors loguru pydantic pydantic-core annotated-types typing-inspection
    typing-extensions torchao optimum-quanto)
[ "${PEERS:-}" = all ] && peers+=(bitsandbytes)
rm -rf "$wheels"
for package in core plugins/triton plugins/cuda plugins/rocm plugins/xpu plugins/cpu_amx; do
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "./$package"
done
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" \
    "importlib-metadata<9" zipp
if [ -n "${PEERS:-}" ]; then
    # For the Python of the device machine's torch.
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels/peers" \
        --python-version "${PEERS_PYTHON:-3.12}" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "${peers[@]}"
fi
