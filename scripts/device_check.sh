#!/usr/bin/env bash
# Install the packages offline, run the device tests and the benchmarks, print a short table last.
#   scripts/device_check.sh [WHEELS [OUT]]
# WHEELS: folder of wheels to install first (ours and what the machine lacks); made on a machine with a
# network by: scripts/device_wheels.sh WHEELS. OUT: folder for full logs; default: build/device.
set -uo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-.wheels}
out=${2:-build/device}
mkdir -p "$out"
python=${PYTHON:-python3}

if [ -d "$wheels" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target /tmp/quantdock-site "$wheels"/*.whl || exit 1
    export PYTHONPATH=/tmp/quantdock-site${PYTHONPATH:+:$PYTHONPATH}
fi

"$python" - <<'PY'
import torch, transformers, quantdock
from quantdock.registry import get_platform
print(f"torch {torch.__version__}, transformers {transformers.__version__}, quantdock {quantdock.__version__}")
for name in ("cuda", "cpu_amx", "cpu"):
    try:
        platform = get_platform(name)
        print(platform, sorted(platform.features))
    except quantdock.QuantDockError as error:
        print(f"{name}: {error.what}")
PY

"$python" -m pytest -p no:cacheprovider -m device -rs tests/device >"$out/tests.log" 2>&1
tests=$?
"$python" -m pytest -p no:cacheprovider tests/core/kernels tests/core/numerics >"$out/core.log" 2>&1
core=$?
for threads in 1 "$(nproc)"; do
    QUANTDOCK_BENCH_THREADS=$threads "$python" -m benchmarks linear \
        >"$out/linear-$threads-threads.log" 2>&1
done

if "$python" -c "import torch; raise SystemExit(not torch.cuda.is_available())"; then
    for name in quantize overhead gemm; do
        "$python" -m "benchmarks.cuda.$name" >"$out/cuda-$name.log" 2>&1
    done
fi

echo "== device tests (exit $tests)"; tail -n 12 "$out/tests.log"
echo "== kernels and numerics (exit $core)"; tail -n 8 "$out/core.log"
for log in "$out"/linear-*.log "$out"/cuda-*.log; do
    [ -f "$log" ] || continue
    echo "== $(basename "$log")"
    tail -n 45 "$log"
done
exit $((tests | core))
