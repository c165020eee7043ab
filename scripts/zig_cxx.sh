#!/bin/sh
# Zig's clang in the place of a C++ compiler, for an old C library (ZIG and ZIG_TARGET: see wheel.py). Zig writes names
# of processors with underscores.
for argument; do
    shift
    case "$argument" in
    -march=x86-64-v*) argument="-march=x86_64_v${argument##*-v}" ;;
    esac
    set -- "$@" "$argument"
done
exec "$ZIG" c++ -target "$ZIG_TARGET" "$@"
