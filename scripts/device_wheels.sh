#!/usr/bin/env bash
# Build the wheels that scripts/device_check.sh installs: ours, and what the device machine lacks.
#   scripts/device_wheels.sh [WHEELS]
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-.wheels}
python=${PYTHON:-.venv/bin/python}
rm -rf "$wheels"
for package in core plugins/triton plugins/cuda plugins/rocm plugins/xpu plugins/cpu_amx; do
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "./$package"
done
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" \
    "importlib-metadata<9" zipp
