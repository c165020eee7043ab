// Arrays of floats that begin at a cache line: whole vectors of them never lie across two lines.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kCacheLine = 64;

template <typename T>
struct CacheLineAllocator {
    using value_type = T;

    CacheLineAllocator() = default;
    template <typename U>
    CacheLineAllocator(const CacheLineAllocator<U>&) {}

    T* allocate(std::size_t count) {
        return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kCacheLine}));
    }
    void deallocate(T* at, std::size_t) { ::operator delete(at, std::align_val_t{kCacheLine}); }

    template <typename U>
    bool operator==(const CacheLineAllocator<U>&) const {
        return true;
    }
    template <typename U>
    bool operator!=(const CacheLineAllocator<U>&) const {
        return false;
    }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
