#!/bin/bash
# The kernels' arm64 levels against the reference, bit for bit, on an emulated machine: `make arm64`.
#
# Wants Debian's gcc-aarch64-linux-gnu and qemu-user, and downloads an arm64 Python (Debian's packages, only unpacked into
# .cache/arm64) with numpy and cffi (wheels). Pure Python packages come from the development environment.
set -euo pipefail
cd "$(dirname "$0")/.."
CACHE=$PWD/.cache/arm64 ROOT=$PWD/.cache/arm64/root SITE=$PWD/.cache/arm64/site
HOST=$PWD/.venv/bin/python
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool > /dev/null || { echo "$tool is missing; install gcc-aarch64-linux-gnu and qemu-user."; exit 2; }
done

APT=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$CACHE/apt" -o Dir::Cache="$CACHE/apt"
     -o Dir::State::status="$CACHE/apt/status" -o Debug::NoLocking=1)
if [ ! -e "$CACHE/ready" ]; then
    mkdir -p "$CACHE/apt/lists/partial" "$CACHE/apt/archives/partial" "$ROOT" "$SITE"
    touch "$CACHE/apt/status"
    "${APT[@]}" update
    "${APT[@]}" --no-install-recommends --download-only --yes install python3.11 libpython3.11-dev libstdc++6
    for package in "$CACHE"/apt/archives/*.deb; do dpkg -x "$package" "$ROOT"; done
    "$HOST" -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_aarch64 --platform manylinux_2_34_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --dest "$CACHE/wheels" numpy cffi msgspec hypothesis
    for wheel in "$CACHE"/wheels/*.whl; do "$HOST" -m zipfile -e "$wheel" "$SITE"; done
    touch "$CACHE/ready"
fi

# What the build makes of the C sources is the same for every architecture but for the compiler.
TARGET=$CACHE/lmhub
rm -rf "$TARGET" && mkdir -p "$TARGET"
cp -r lmhub tests pyproject.toml "$TARGET"
rm -f "$TARGET"/lmhub/_native*.so
"$HOST" - "$TARGET/_native.c" <<'PYTHON'
import runpy, sys
runpy.run_path("lmhub/_native_build.py")["ffibuilder"].emit_c_code(sys.argv[1])
PYTHON
aarch64-linux-gnu-gcc -O3 -std=gnu11 -ffp-contract=off -fno-math-errno -fvisibility=hidden -pthread -shared -fPIC \
    -I"$ROOT/usr/include/python3.11" -I"$ROOT/usr/include" -Ilmhub/include -Ilmhub/csrc \
    -o "$TARGET/lmhub/_native.abi3.so" "$TARGET/_native.c" lmhub/csrc/*.c -lm

# Tests that start another Python find it emulated as well. One test wants a plugin, which is not built, and
# qemu 7.2 itself fails when a process of several threads forks.
PURE=$("$HOST" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
export PYTHONPATH="$TARGET:$SITE:$PURE" PYTHONDONTWRITEBYTECODE=1
printf '#!/bin/sh\nexec qemu-aarch64 -L %s -cpu max %s/usr/bin/python3.11 "$@"\n' "$ROOT" "$ROOT" > "$CACHE/python"
chmod +x "$CACHE/python"
cd "$TARGET"
"$CACHE/python" -c 'import sys, pytest; sys.executable = sys.argv.pop(1); sys.exit(pytest.main(sys.argv[1:]))' "$CACHE/python" \
    -q -p no:cacheprovider --ignore tests/native/test_build.py \
    --deselect tests/native/test_profile.py::test_results_are_the_same_bits \
    --deselect tests/native/test_runtime.py::test_a_forked_child_can_compute "${@:-tests/native}"
