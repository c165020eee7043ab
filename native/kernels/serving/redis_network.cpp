#include "sparsefleet/serving/redis_network.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "sparsefleet/float_mode.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Clock = std::chrono::steady_clock;

// Kept from call to call.
struct TableSpace {
    std::vector<unsigned char> packed;
    std::vector<std::int64_t> missing;
    std::size_t misses = 0;
};
struct Space {
    std::vector<TableSpace> tables;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> buckets;
    std::vector<unsigned char> command;
};

constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

Bytes view(const std::string& text) {
    return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

double seconds_until(Clock::time_point deadline) {
    return std::max(0.0, std::chrono::duration<double>(deadline - Clock::now()).count());
}

// Returns an errno, 0 if all is sent.
int send_all(int socket, Clock::time_point deadline, const unsigned char* data, std::size_t size) {
    while (size) {
        const ssize_t count = ::send(socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count >= 0) {
            data += count;
            size -= static_cast<std::size_t>(count);
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        const double left = seconds_until(deadline);
        if (left <= 0) return ETIMEDOUT;
        pollfd wanted{socket, POLLOUT, 0};
        if (::poll(&wanted, 1, static_cast<int>(std::ceil(1e3 * left))) < 0 && errno != EINTR) return errno;
    }
    return 0;
}

// Appends the commands that ask for a table's missing rows.
void append_command(Space& space, const RedisTable& table, const TableSpace& of, const std::uint64_t* keys,
                    std::size_t per_command) {
    static const unsigned char kFields[] = "HMGET", kStrings[] = "MGET";
    const BucketPlace place{view(table.hash), view(table.prefix)};
    const Bytes verb = place.hash.size ? Bytes{kFields, 5} : Bytes{kStrings, 4};
    space.keys.resize(std::max(space.keys.size(), of.misses));
    space.buckets.resize(std::max(space.buckets.size(), of.misses));
    for (std::size_t i = 0; i < of.misses; ++i) space.keys[i] = keys[static_cast<std::size_t>(of.missing[i])];
    bucket_numbers(space.keys.data(), of.misses, table.seed, table.bits, space.buckets.data());
    const std::size_t begin = space.command.size();
    space.command.resize(begin + names_bytes(verb.size, place, of.misses, per_command));
    space.command.resize(begin + encode_names(verb, place, space.buckets.data(), of.misses, per_command,
                                              space.command.data() + begin));
}

}  // namespace

std::size_t RedisLookup::find(const std::vector<Wanted>& wanted) {
    thread_local Space mine;
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    mine.tables.resize(std::max(mine.tables.size(), wanted.size()));
    mine.command.clear();
    for (std::size_t t = 0; t < wanted.size(); ++t) {
        TableSpace& space = mine.tables[t];
        const Wanted& of = wanted[t];
        space.packed.resize(std::max(space.packed.size(), of.n * tables_[t].stride));
        space.missing.resize(std::max(space.missing.size(), of.n));
        space.misses =
            tables_[t].cache->get(of.keys, of.n, space.packed.data(), of.found, space.missing.data());
        fetched += space.misses;
        if (space.misses) append_command(mine, tables_[t], space, of.keys, per_command_);
    }
    if (fetched) {
        error = send_all(socket_, deadline, mine.command.data(), mine.command.size());
        status = error ? kMore : kDone;
    }
    for (std::size_t t = 0; t < wanted.size() && status == kDone; ++t) {
        TableSpace& space = mine.tables[t];
        const Wanted& of = wanted[t];
        if (!space.misses) continue;
        const BucketsReceived read =
            receive_buckets(socket_, seconds_until(deadline), received_, of.keys, space.missing.data(),
                            space.misses, per_command_, tables_[t].stride, 0, space.packed.data(), of.found);
        status = read.status;
        error = read.error;
        if (status == kDone)
            tables_[t].cache->put(of.keys, space.missing.data(), space.misses, space.packed.data(), of.found);
    }
    std::size_t hits = kDamaged;
    if (status == kDone) {
        const KeepDenormals mode;  // stored rows are read as they are
        hits = 0;
        for (std::size_t t = 0; t < wanted.size(); ++t) {
            const Wanted& of = wanted[t];
            decode_rows(mine.tables[t].packed.data(), of.found, of.n, tables_[t].type, tables_[t].dim,
                        tables_[t].stride, of.rows);
            hits += static_cast<std::size_t>(std::count(of.found, of.found + of.n, std::uint8_t{1}));
        }
    }
    std::size_t kept = mine.command.capacity();
    for (const TableSpace& space : mine.tables) kept += space.packed.size();
    if (kept > kKeptBytes) mine = Space{};
    return hits;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
