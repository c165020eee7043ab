// Whether denormals (float32: below 1.2e-38) are numbers or zeros: a setting of each thread's processor.
//
// A kernel decides that for itself and does not take it from its caller, so that its bits are the same in
// every thread; and it leaves the caller's setting as it was. In arithmetic on parameters and gradients
// denormals are zero (FlushDenormals): some processors take a hundred cycles for each. In reading text and
// stored rows, making first values and counting clicks they are numbers (KeepDenormals).
//
// Trap: the compiler does not know that arithmetic depends on the setting, and may move arithmetic out of a
// scope. So put only calls into a scope that are not inlined: of functions in another file, or marked
// noinline.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace sparsefleet {

#if defined(__x86_64__) || defined(__i386__)
using FloatControl = std::uint32_t;
inline constexpr FloatControl kFlushBits = 0x8040;  // MXCSR: results flushed to zero, operands taken as zero
inline FloatControl float_control() { return _mm_getcsr(); }
inline void set_float_control(FloatControl control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
using FloatControl = std::uint64_t;
inline constexpr FloatControl kFlushBits = FloatControl{1} << 24;  // FPCR.FZ: both
inline FloatControl float_control() {
    FloatControl control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
inline void set_float_control(FloatControl control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
using FloatControl = std::uint32_t;
inline constexpr FloatControl kFlushBits = 0;  // not known how: denormals stay numbers
inline FloatControl float_control() { return 0; }
inline void set_float_control(FloatControl) {}
#endif

// The bits that make denormals zero, as they are in the calling thread.
inline FloatControl flush_bits() { return float_control() & kFlushBits; }

// Leaves the rest of the register alone: arithmetic raises flags there.
inline void set_flush_bits(FloatControl bits) { set_float_control((float_control() & ~kFlushBits) | bits); }

// Writes the register only where something changes: reading it is cheaper.
template <FloatControl kBits>
class DenormalScope {
  public:
    DenormalScope() : before_(flush_bits()) {
        if (before_ != kBits) set_flush_bits(kBits);
    }
    ~DenormalScope() {
        if (before_ != kBits) set_flush_bits(before_);
    }
    DenormalScope(const DenormalScope&) = delete;
    DenormalScope& operator=(const DenormalScope&) = delete;

  private:
    const FloatControl before_;
};

using FlushDenormals = DenormalScope<kFlushBits>;
using KeepDenormals = DenormalScope<0>;

}  // namespace sparsefleet
