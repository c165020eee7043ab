#include "sparsefleet/serving/redis_network.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#include "sparsefleet/float_mode.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Clock = RedisLookup::Clock;

// Kept from call to call.
struct TableSpace {
    std::vector<unsigned char> packed;
    std::vector<std::int64_t> missing;  // keys that are not cached; first those that are asked for one by one
    std::size_t misses = 0, single = 0;
    std::vector<std::uint32_t> hot;  // for each hot row the key that it is for
};
struct Space {
    std::vector<TableSpace> tables;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> buckets;
    std::vector<unsigned char> command;
    std::vector<std::size_t> ends;  // of each request's part of it
};

// Where the hot rows take no more bytes than this for each key among them that is missing, all of them are
// read: looking a key up costs Redis as much as sending so many bytes.
constexpr std::size_t kHotBytes = 1024;
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

// Decides which of the missing keys come with the hot rows, and moves the others to the front.
void part_hot(TableSpace& space, const RedisTable& table, const std::uint64_t* keys) {
    space.single = space.misses;
    if (!table.hot || space.misses * kHotBytes < table.hot->size() * table.stride) return;
    space.hot.assign(table.hot->size(), kNotHot);
    std::size_t found = 0;
    for (std::size_t i = 0; i < space.misses; ++i) {
        const auto key = static_cast<std::size_t>(space.missing[i]);
        const std::uint32_t row = table.hot->find(keys[key]);
        if (row == kNotHot) continue;
        space.hot[row] = static_cast<std::uint32_t>(key);
        ++found;
    }
    if (!found || found * kHotBytes < table.hot->size() * table.stride) return;
    std::stable_partition(
        space.missing.begin(), space.missing.begin() + static_cast<std::ptrdiff_t>(space.misses),
        [&](std::int64_t key) { return table.hot->find(keys[static_cast<std::size_t>(key)]) == kNotHot; });
    space.single = space.misses - found;
}

// Appends the command that asks for all hot rows of a table.
void append_hot(Space& space, const RedisTable& table) {
    static const unsigned char kFields[] = "HMGET";
    const BucketPlace place{view(table.hot_hash), {nullptr, 0}};
    const std::size_t each = hot_value_rows(table.stride), n = (table.hot->size() + each - 1) / each;
    space.buckets.resize(std::max(space.buckets.size(), n));
    for (std::size_t i = 0; i < n; ++i) space.buckets[i] = static_cast<std::uint32_t>(i);
    const std::size_t begin = space.command.size();
    space.command.resize(begin + names_bytes(5, place, n, n));
    space.command.resize(
        begin + encode_names({kFields, 5}, place, space.buckets.data(), n, n, space.command.data() + begin));
}

// Appends the commands that ask one by one for some of a table's missing rows.
void append_command(Space& space, const RedisTable& table, const std::int64_t* missing, std::size_t n,
                    const std::uint64_t* keys, std::size_t per_command) {
    static const unsigned char kFields[] = "HMGET", kStrings[] = "MGET";
    const BucketPlace place{view(table.hash), view(table.prefix)};
    const Bytes verb = place.hash.size ? Bytes{kFields, 5} : Bytes{kStrings, 4};
    space.keys.resize(std::max(space.keys.size(), n));
    space.buckets.resize(std::max(space.buckets.size(), n));
    for (std::size_t i = 0; i < n; ++i) space.keys[i] = keys[static_cast<std::size_t>(missing[i])];
    bucket_numbers(space.keys.data(), n, table.seed, table.bits, space.buckets.data());
    const std::size_t begin = space.command.size();
    space.command.resize(begin + names_bytes(verb.size, place, n, per_command));
    space.command.resize(begin + encode_names(verb, place, space.buckets.data(), n, per_command,
                                              space.command.data() + begin));
}

// Which of the keys that are asked for one by one this request wants and none before it.
std::pair<std::size_t, std::size_t> singles(const TableSpace& space, const Wanted& of, std::size_t request) {
    const auto first = space.missing.begin(), last = first + static_cast<std::ptrdiff_t>(space.single);
    const auto below = [&](std::size_t end) {
        return static_cast<std::size_t>(std::lower_bound(first, last, static_cast<std::int64_t>(end)) -
                                        first);
    };
    return {request ? below(of.ends[request - 1]) : 0, below(of.ends[request])};
}

Space& space_of_thread() {
    thread_local Space mine;
    return mine;
}

}  // namespace

RedisLookup::~RedisLookup() {
    Space& mine = space_of_thread();
    std::size_t kept = mine.command.capacity();
    for (const TableSpace& space : mine.tables) kept += space.packed.size();
    if (kept > kKeptBytes) mine = Space{};
}

void RedisLookup::ask(const std::vector<Wanted>& wanted, std::size_t requests) {
    Space& mine = space_of_thread();
    const auto seconds = std::chrono::duration<double>(seconds_);
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
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
        part_hot(space, tables_[t], of.keys);
        if (space.single < space.misses) append_hot(mine, tables_[t]);
    }
    mine.ends.clear();
    for (std::size_t i = 0; i < requests; ++i) {
        for (std::size_t t = 0; t < wanted.size(); ++t) {
            const auto [from, to] = singles(mine.tables[t], wanted[t], i);
            if (from < to)
                append_command(mine, tables_[t], mine.tables[t].missing.data() + from, to - from,
                               wanted[t].keys, per_command_);
        }
        mine.ends.push_back(mine.command.size());
    }
    send_for(0);
}

void RedisLookup::send_for(std::size_t request) {
    const Space& mine = space_of_thread();
    if (request == mine.ends.size()) return;
    const std::size_t begin = request ? mine.ends[request - 1] : 0;
    error = send_all(socket_, deadline_, mine.command.data() + begin, mine.ends[request] - begin);
    status = error ? kMore : kDone;
}

std::size_t RedisLookup::find(const std::vector<Wanted>& wanted, std::size_t request) {
    Space& mine = space_of_thread();
    const auto took = [&](const BucketsReceived& read) {
        status = read.status;
        error = read.error;
        return status == kDone;
    };
    for (std::size_t t = 0; t < wanted.size() && status == kDone && !request; ++t) {
        TableSpace& space = mine.tables[t];
        if (space.single == space.misses) continue;
        for (std::size_t i = space.single; i < space.misses; ++i) wanted[t].found[space.missing[i]] = 1;
        if (!took(receive_hot_rows(socket_, seconds_until(deadline_), received_, space.hot.data(),
                                   tables_[t].hot->size(), tables_[t].stride, space.packed.data())))
            hot_failed = !error;
    }
    for (std::size_t t = 0; t < wanted.size() && status == kDone; ++t) {
        const TableSpace& space = mine.tables[t];
        const Wanted& of = wanted[t];
        const auto [from, to] = singles(space, of, request);
        if (from < to)
            took(receive_buckets(socket_, seconds_until(deadline_), received_, of.keys,
                                 space.missing.data() + from, to - from, per_command_, tables_[t].stride, 0,
                                 mine.tables[t].packed.data(), of.found));
    }
    // Not before: Redis sends 64 KB of its replies, and goes on with what has come before it sends more.
    if (status == kDone) send_for(request + 1);
    std::size_t hits = 0;
    for (std::size_t t = 0; t < wanted.size() && status == kDone; ++t) {
        TableSpace& space = mine.tables[t];
        const Wanted& of = wanted[t];
        const RedisTable& table = tables_[t];
        if (of.ends[request] == of.n && space.misses) {
            table.cache->put(of.keys, space.missing.data(), space.misses, space.packed.data(), of.found);
            space.misses = space.single = 0;
        }
        const std::size_t first = begin(of, request), n = of.ends[request] - first;
        const KeepDenormals mode;  // stored rows are read as they are
        decode_rows(space.packed.data() + first * table.stride, of.found + first, n, table.type, table.dim,
                    table.stride, of.rows + first * table.dim);
        hits += static_cast<std::size_t>(std::count(of.found + first, of.found + first + n, std::uint8_t{1}));
    }
    return status == kDone ? hits : kDamaged;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
