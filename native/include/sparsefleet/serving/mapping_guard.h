// Guards mapped files against being cut short: a page that the file no longer has would end the process
// (SIGBUS). In a guarded mapping such a page reads as zeros from then on, and the mapping is marked as lost:
// whoever has read from it asks afterwards, and throws away what he read.
#pragma once

#include <cstddef>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kNoGuard = static_cast<std::size_t>(-1);

// A number for the other two functions, or kNoGuard where there is no room for one more.
std::size_t guard_mapping(const void* start, std::size_t bytes);
bool mapping_lost(std::size_t number);
// To be called before the mapping is undone: afterwards something else may lie there.
void release_mapping(std::size_t number);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
