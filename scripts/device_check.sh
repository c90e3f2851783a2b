#!/usr/bin/env bash
# Install the packages offline, run the device tests and the benchmarks, print a short table last.
#   [STAGES="tests core cpu cuda"] scripts/device_check.sh [WHEELS [OUT]]
# WHEELS: folder of wheels to install first (ours and what the machine lacks); made on a machine with a
# network by: scripts/device_wheels.sh WHEELS. OUT: folder for full logs; default: build/device.
# STAGES: some of tests (tests/device), core (kernels and numerics on the CPU), cpu and cuda (benchmarks),
# and, where there is time and room on the disk, generate (a decoder of 8 billion weights, end to end).
set -uo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-.wheels}
out=${2:-build/device}
stages=${STAGES:-tests core cpu cuda}
mkdir -p "$out"
python=${PYTHON:-python3}
failed=0

if [ -d "$wheels" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target /tmp/quantdock-site "$wheels"/*.whl || exit 1
    export PYTHONPATH=/tmp/quantdock-site${PYTHONPATH:+:$PYTHONPATH}
fi

# run NAME COMMAND...: the command's output goes to OUT/NAME.log.
run() {
    local name=$1
    shift
    "$@" >"$out/$name.log" 2>&1 || { failed=1; echo "$name failed ($?)"; }
}

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

for stage in $stages; do
    case $stage in
    tests) run tests "$python" -m pytest -p no:cacheprovider -p no:benchmark -n 8 -m device -rs tests/device ;;
    core) run core "$python" -m pytest -p no:cacheprovider -p no:benchmark -n 8 \
        tests/core/kernels tests/core/numerics ;;
    cpu) for threads in 1 "$(nproc)"; do
        QUANTDOCK_BENCH_THREADS=$threads run "cpu-$threads-threads" "$python" -m benchmarks linear
    done ;;
    cuda) for table in quantize gemm w4a16 overhead; do
        run "cuda-$table" "$python" -m "benchmarks.cuda.$table"
    done ;;
    generate) run cuda-generate "$python" -m benchmarks.cuda.generate --folder "$out/generate" ;;
    *) echo "No stage is called $stage: tests, core, cpu, cuda, generate." && exit 2 ;;
    esac
done

for log in "$out"/*.log; do echo "== $(basename "$log" .log)"; tail -n 24 "$log"; done
exit $failed
