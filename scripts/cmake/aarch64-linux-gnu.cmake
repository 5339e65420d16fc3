# SPDX-License-Identifier: Apache-2.0
# Builds for aarch64 Linux on another machine, with Debian's cross compiler and its arm64 packages (multiarch); qemu runs
# what the build and the tests run. scripts/setup.sh --cross installs all of it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
# Without this variable pkg-config would find the libraries of the build machine.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
