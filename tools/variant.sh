#!/usr/bin/env bash
# Build tapeflow with checks (asan or boundscheck) in a copy of the tree, .build/VARIANT, and run the suite there:
#     tools/variant.sh asan .venv/bin/python [pytest arguments]
set -euo pipefail
variant=$1
python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
shift 2
cd "$(dirname "$0")/.."
copy=.build/$variant

# Objects in the copy's build/ stay: the build looks at contents, so only what changed is compiled again.
mkdir -p "$copy"
find "$copy" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
tar -c --exclude='*.so' --exclude=__pycache__ --exclude=./build --exclude='./.*' --exclude=./out --exclude=./dist \
    --exclude='*.egg-info' . | tar -x -C "$copy"
cd "$copy"

echo "Building the $variant variant in $copy"
export TAPEFLOW_BUILD=$variant
"$python" setup.py -q build_ext --inplace

export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-quick}
if [ "$variant" = asan ]; then
    # libstdc++ is loaded with it, so that exceptions of other libraries find the sanitizer's hook.
    cc=${CC:-cc}
    preload="$($cc -print-file-name=libasan.so) $($cc -print-file-name=libstdc++.so.6)"
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export PYTHONMALLOC=malloc
    LD_PRELOAD=$preload exec "$python" -m pytest -q -p no:cacheprovider "$@"
fi
exec "$python" -m pytest -q -p no:cacheprovider "$@"
