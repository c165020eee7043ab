// Memory for rows: equal chunks carved from big blocks that ask the kernel for huge pages.
//
// A lookup in a table of gigabytes misses the TLB every time with 4 KB pages; with 2 MB pages it seldom does.
// But a huge page is resident as a whole once touched, so shards share blocks: a shard takes a chunk of some
// 200 KB at a time, and only the table's last block is partly idle.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Zeroed anonymous memory, aligned and advised for huge pages where that makes sense. Throws std::bad_alloc.
void* map_pages(std::size_t bytes);
void unmap_pages(void* address, std::size_t bytes);

class ChunkArena {
  public:
    explicit ChunkArena(std::size_t chunk_bytes);
    ~ChunkArena();
    ChunkArena(const ChunkArena&) = delete;
    ChunkArena& operator=(const ChunkArena&) = delete;

    // Safe from many threads.
    std::byte* take();
    void give_back(std::byte* chunk);  // it is the next that `take` hands out
    void release_all();                // every chunk handed out becomes invalid
    std::size_t bytes() const;

  private:
    const std::size_t chunk_bytes_;
    std::size_t block_bytes_ = 0, chunks_per_block_ = 0, used_in_last_ = 0;
    std::vector<void*> blocks_;
    std::vector<std::byte*> free_;
    mutable std::mutex mutex_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
