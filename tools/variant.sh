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
# --capture=sys: what a sanitizer writes before it ends the process is to be seen.
pytest=(-m pytest -q -p no:cacheprovider --capture=sys)
if [ "$variant" = asan ]; then
    # detect_leaks, leak_check_at_exit: leaks are looked for by tools/leaks.py, before the interpreter is torn down.
    # allocator_may_return_null: tests ask for more memory than there is and expect an error.
    # handle_segv=2, abort_on_error: not pytest's faulthandler but the sanitizer reports a fault; the abort that
    #     follows then shows the Python stack, and so the test.
    # quarantine_size_mb: at the default of 256, freed blocks alone are what tests of resident memory see growing.
    asan=detect_leaks=1:leak_check_at_exit=0:allocator_may_return_null=1:handle_segv=2:abort_on_error=1
    export ASAN_OPTIONS=$asan:quarantine_size_mb=16:${ASAN_OPTIONS:-}
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1:${UBSAN_OPTIONS:-}
    export PYTHONMALLOC=malloc
    # libstdc++ is loaded with it, so that exceptions of other libraries find the sanitizer's hook.
    cc=${CC:-cc}
    preload="$($cc -print-file-name=libasan.so) $($cc -print-file-name=libstdc++.so.6)"
    LD_PRELOAD=$preload exec "$python" "${pytest[@]}" -p tools.leaks "$@"
fi
exec "$python" "${pytest[@]}" "$@"
