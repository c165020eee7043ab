#include "sparsefleet/serving/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// The handler may run in any thread at any instruction, so it reads nothing but lock-free atomics.
struct Region {
    std::atomic<std::uintptr_t> start{0};
    std::atomic<std::uintptr_t> stop{0};  // 0: the place is free
    std::atomic<bool> lost{false};
};

constexpr std::size_t kRegions = 1024;
Region regions[kRegions];
std::uintptr_t page_size = 0;
struct sigaction before;
std::mutex changing;

void on_bus_error(int, siginfo_t* info, void*) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (Region& region : regions) {
        const std::uintptr_t stop = region.stop.load(std::memory_order_acquire);
        if (address < region.start.load(std::memory_order_relaxed) || address >= stop) continue;
        void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
        if (mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
            region.lost.store(true, std::memory_order_release);
            return;  // the instruction runs again, and reads zeros
        }
    }
    sigaction(SIGBUS, &before, nullptr);  // not ours: it happens again, to whoever was here before us
}

void install() {
    static bool done = false;
    if (done) return;
    page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    done = sigaction(SIGBUS, &action, &before) == 0;
}

}  // namespace

std::size_t guard_mapping(const void* start, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(changing);
    install();
    for (std::size_t number = 0; number < kRegions; ++number) {
        Region& region = regions[number];
        if (region.stop.load(std::memory_order_relaxed)) continue;
        region.lost.store(false, std::memory_order_relaxed);
        region.start.store(reinterpret_cast<std::uintptr_t>(start), std::memory_order_relaxed);
        region.stop.store(reinterpret_cast<std::uintptr_t>(start) + bytes, std::memory_order_release);
        return number;
    }
    return kNoGuard;
}

bool mapping_lost(std::size_t number) {
    return number < kRegions && regions[number].lost.load(std::memory_order_acquire);
}

void release_mapping(std::size_t number) {
    if (number < kRegions) regions[number].stop.store(0, std::memory_order_release);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
