// What this processor can do, and what of it the operating system lets programs use. This file is compiled
// once, for any processor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sparsefleet {

struct Processor {
    std::string name;                   // as it calls itself
    std::vector<std::string> features;  // named as in /proc/cpuinfo; only those that some level asks for
    std::uint64_t saved_state = 0;      // XCR0: registers that the system keeps when it switches threads
};

// Empty on architectures without cpuid.
Processor this_processor();

// Linux keeps the tile registers from a process until it asks for them. Returns 0, or the error's number.
int request_tiles();

}  // namespace sparsefleet
