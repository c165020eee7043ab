#include "sparsefleet/chunks.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

void* map_anonymous(std::size_t bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    return address;
}

}  // namespace

void* map_pages(std::size_t bytes) {
    bytes = round_up(bytes, kPage);
    void* address = nullptr;
    if (bytes % kHugePage != 0) {
        address = map_anonymous(bytes);
    } else {
        // mmap aligns to small pages only: map one huge page more and give the ends back.
        char* wide = static_cast<char*>(map_anonymous(bytes + kHugePage));
        char* start = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(wide), kHugePage));
        if (start != wide) munmap(wide, static_cast<std::size_t>(start - wide));
        char* end = wide + bytes + kHugePage;
        if (start + bytes != end) munmap(start + bytes, static_cast<std::size_t>(end - (start + bytes)));
        address = start;
    }
#ifdef MADV_HUGEPAGE
    madvise(address, bytes, MADV_HUGEPAGE);  // advice only: small pages do as well, slower
#endif
    return address;
}

void unmap_pages(void* address, std::size_t bytes) { munmap(address, round_up(bytes, kPage)); }

ChunkArena::ChunkArena(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
    // The smallest block that wastes at most 2 % behind its last chunk, or the best there is.
    double best = 2.0;
    for (std::size_t pages = 2; pages <= 8; ++pages) {
        const std::size_t bytes = pages * kHugePage, count = bytes / chunk_bytes_;
        if (count == 0) continue;
        const double waste = 1.0 - static_cast<double>(count * chunk_bytes_) / static_cast<double>(bytes);
        if (waste < best) {
            best = waste;
            block_bytes_ = bytes;
            chunks_per_block_ = count;
        }
        if (best <= 0.02) break;
    }
    if (block_bytes_ == 0) {  // chunks beyond 16 MB: a block each
        block_bytes_ = round_up(chunk_bytes_, kHugePage);
        chunks_per_block_ = 1;
    }
    used_in_last_ = chunks_per_block_;
}

ChunkArena::~ChunkArena() { release_all(); }

std::byte* ChunkArena::take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!free_.empty()) {
        std::byte* chunk = free_.back();
        free_.pop_back();
        return chunk;
    }
    if (used_in_last_ == chunks_per_block_) {
        if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 8);
        blocks_.push_back(map_pages(block_bytes_));  // there is room: a mapped block cannot get lost
        used_in_last_ = 0;
    }
    return static_cast<std::byte*>(blocks_.back()) + chunk_bytes_ * used_in_last_++;
}

void ChunkArena::give_back(std::byte* chunk) {
    const std::lock_guard<std::mutex> guard(mutex_);
    free_.push_back(chunk);
}

void ChunkArena::release_all() {
    const std::lock_guard<std::mutex> guard(mutex_);
    free_ = {};
    for (void* block : blocks_) unmap_pages(block, block_bytes_);
    blocks_.clear();
    used_in_last_ = chunks_per_block_;
}

std::size_t ChunkArena::bytes() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return blocks_.size() * block_bytes_ + (blocks_.capacity() + free_.capacity()) * sizeof(void*);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
