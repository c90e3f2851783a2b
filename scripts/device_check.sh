#!/usr/bin/env bash
# Install the packages offline, run the device tests and the benchmarks, print a short table last.
#   [STAGES="tests cuda"] [TABLES="gemm experts"] [LIMIT=600] scripts/device_check.sh [WHEELS [OUT]]
# WHEELS: folder of wheels to install first (ours and what the machine lacks); made on a machine with a
# network by: scripts/device_wheels.sh WHEELS. Its subfolder peers, if any, is for the stage generate alone.
# OUT: folder for full logs; default: build/device.
# STAGES: tests (tests/device), cuda (tables of the kernels, those in TABLES or all), core (kernels and numerics
# on the CPU), cpu (linear layers on the CPU) and generate; default: tests cuda where torch finds a GPU, else
# tests core cpu. LIMIT: seconds after which one step of a stage is given up.
# generate is a decoder with the sizes of one of 8 billion weights, end to end. It writes up to 30 GB, with
# --layers 32 80 GB, to GENERATE_FOLDER (default: OUT/generate; a folder in memory is faster), and measures the
# ways named in GENERATE, or all of them, in 8 layers; its rows are added to OUT/generate.json.
set -uo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-.wheels}
out=${2:-build/device}
mkdir -p "$out"
python=${PYTHON:-python3}
workers=$(($(nproc) * 3 / 4 + 1))
failed=0
names=()
summary=()

# install FOLDER SITE: the wheels in FOLDER, where there are any, and put them on the path.
install() {
    compgen -G "$1/*.whl" >/dev/null || return 0
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$2" "$1"/*.whl || exit 1
    export PYTHONPATH=$2${PYTHONPATH:+:$PYTHONPATH}
}

# run NAME COMMAND...: the command's output goes to OUT/NAME.log, its last line into the table.
run() {
    local name=$1 begun=$SECONDS status=0
    shift
    names+=("$name")
    timeout "${LIMIT:-600}" "$@" >"$out/$name.log" 2>&1 || { status=$? && failed=1; }
    summary+=("$(printf '%-22s %5d s  %-9s %s' "$name" $((SECONDS - begun)) \
        "$([ $status = 0 ] && echo passed || echo "failed $status")" \
        "$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c 1-100)")")
}

# test_all NAME ARGUMENT...: with one thread a worker, so that workers do not wait for each other's cores.
test_all() {
    local name=$1
    shift
    run "$name" env OMP_NUM_THREADS=1 "$python" -m pytest -p no:cacheprovider -p no:benchmark \
        -n "$workers" --dist worksteal -rs "$@"
}

install "$wheels" /tmp/quantdock-site
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

gpu="import torch; raise SystemExit(not torch.cuda.is_available())"
usual=$("$python" -c "$gpu" && echo tests cuda || echo tests core cpu)
for stage in ${STAGES:-$usual}; do
    case $stage in
    tests) test_all tests -m device tests/device ;;
    core) test_all core tests/core/kernels tests/core/numerics ;;
    cpu) for threads in 1 "$(nproc)"; do
        QUANTDOCK_BENCH_THREADS=$threads run "cpu-$threads-threads" "$python" -m benchmarks linear
    done ;;
    cuda) for table in ${TABLES:-gemm w4a16 batch_invariant experts quantize small_floats overhead}; do
        run "cuda-$table" "$python" -m "benchmarks.cuda.$table"
    done ;;
    generate)
        install "$wheels/peers" /tmp/quantdock-peers
        # shellcheck disable=SC2086
        run cuda-generate "$python" -m benchmarks.cuda.generate --results "$out/generate.json" \
            --layers 8 --folder "${GENERATE_FOLDER:-$out/generate}" ${GENERATE:-} ;;
    *) echo "No stage is called $stage: tests, core, cpu, cuda, generate." && exit 2 ;;
    esac
done

for name in "${names[@]}"; do echo "== $name" && tail -n 24 "$out/$name.log"; done
printf '%s\n' "== stages" "${summary[@]}"
exit $failed
