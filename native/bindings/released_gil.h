// Runs a kernel without the GIL, and gets the GIL back without sleeping for it where that is likely to be
// quick.
//
// Training threads call a handful of kernels a step, and between them hold the GIL for some ten microseconds
// each. Who finds the GIL taken is put to sleep by CPython, and woken later than the other thread's whole
// turn took, several times so on a virtual machine whose idle processor has to be started again. So a thread
// that has released the GIL for a kernel looks first, for kPatience at most, whether a thread that has just
// come back from one will go into its next one.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL {

class ReleasedGil {
  public:
    ReleasedGil() : state_(PyEval_SaveThread()) {
        // Only our own mark: the next thread may have the GIL, and have left its own, by now.
        std::int64_t mark = mine_;
        if (mark != 0) taken_at_.compare_exchange_strong(mark, 0, std::memory_order_release);
    }
    ~ReleasedGil() {
        wait_a_little();
        PyEval_RestoreThread(state_);
        mine_ = now();
        taken_at_.store(mine_, std::memory_order_relaxed);
    }
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;

  private:
    static constexpr std::int64_t kPatience = 50'000;  // ns since the other has taken it

    static std::int64_t now() {
        return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        _mm_pause();
#endif
    }

    // Whoever has marked the GIL as his may have lost it another way than into a kernel, so the mark is
    // believed for so long only; and one thread at a time looks: where several wait, the GIL is short, and
    // processors may be, too.
    static void wait_a_little() {
        if (taken_at_.load(std::memory_order_acquire) == 0 || one_processor()) return;
        if (looking_.exchange(true, std::memory_order_acquire)) return;
        for (;;) {
            const std::int64_t taken = taken_at_.load(std::memory_order_acquire);
            if (taken == 0 || now() - taken > kPatience) break;
            for (int i = 0; i < 8; ++i) pause();
        }
        looking_.store(false, std::memory_order_release);
    }

    static bool one_processor() {
        static const bool one = std::thread::hardware_concurrency() < 2;
        return one;
    }

    // When the thread that has the GIL came back from a kernel, in nanoseconds; 0: it is in a kernel again.
    inline static std::atomic<std::int64_t> taken_at_{0};
    inline static std::atomic<bool> looking_{false};
    inline static thread_local std::int64_t mine_ = 0;

    PyThreadState* state_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
