#include "sparsefleet/processor.h"

#include <cerrno>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sparsefleet {

#if defined(__x86_64__)

namespace {

enum Register { kEax, kEbx, kEcx, kEdx };

struct Feature {
    const char* name;
    unsigned leaf, subleaf;
    Register in;
    unsigned bit;
};

constexpr Feature kFeatures[] = {
    {"pni", 1, 0, kEcx, 0},
    {"ssse3", 1, 0, kEcx, 9},
    {"fma", 1, 0, kEcx, 12},
    {"cx16", 1, 0, kEcx, 13},
    {"sse4_1", 1, 0, kEcx, 19},
    {"sse4_2", 1, 0, kEcx, 20},
    {"movbe", 1, 0, kEcx, 22},
    {"popcnt", 1, 0, kEcx, 23},
    {"osxsave", 1, 0, kEcx, 27},
    {"avx", 1, 0, kEcx, 28},
    {"f16c", 1, 0, kEcx, 29},
    {"bmi1", 7, 0, kEbx, 3},
    {"avx2", 7, 0, kEbx, 5},
    {"bmi2", 7, 0, kEbx, 8},
    {"avx512f", 7, 0, kEbx, 16},
    {"avx512dq", 7, 0, kEbx, 17},
    {"avx512cd", 7, 0, kEbx, 28},
    {"avx512bw", 7, 0, kEbx, 30},
    {"avx512vl", 7, 0, kEbx, 31},
    {"amx_bf16", 7, 0, kEdx, 22},
    {"amx_tile", 7, 0, kEdx, 24},
    {"avx512_bf16", 7, 1, kEax, 5},
    {"lahf_lm", 0x80000001u, 0, kEcx, 0},
    {"abm", 0x80000001u, 0, kEcx, 5},
};

// Gives zeros if the processor has no such leaf.
void ask(unsigned leaf, unsigned subleaf, unsigned (&answer)[4]) {
    answer[0] = answer[1] = answer[2] = answer[3] = 0;
    __get_cpuid_count(leaf, subleaf, &answer[0], &answer[1], &answer[2], &answer[3]);
}

}  // namespace

Processor this_processor() {
    Processor found;
    unsigned answer[4];
    bool xgetbv = false;
    for (const Feature& feature : kFeatures) {
        ask(feature.leaf, feature.subleaf, answer);
        if (!(answer[feature.in] >> feature.bit & 1)) continue;
        const std::string name = feature.name;
        if (name == "osxsave")
            xgetbv = true;  // tells that the instruction xgetbv exists; no level asks for it
        else
            found.features.push_back(name);
    }
    if (xgetbv) {
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        found.saved_state = static_cast<std::uint64_t>(high) << 32 | low;
    }
    for (unsigned leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf) {
        ask(leaf, 0, answer);
        found.name.append(reinterpret_cast<const char*>(answer), sizeof answer);
    }
    const std::size_t end = found.name.find('\0');
    if (end != std::string::npos) found.name.resize(end);
    const std::size_t first = found.name.find_first_not_of(' '), last = found.name.find_last_not_of(' ');
    found.name = first == std::string::npos ? "" : found.name.substr(first, last - first + 1);
    return found;
}

#else

Processor this_processor() { return {}; }

#endif

int request_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
    return ENOSYS;
#endif
}

}  // namespace sparsefleet
