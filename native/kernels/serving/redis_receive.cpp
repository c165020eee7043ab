#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "sparsefleet/serving/hot_rows.h"
#include "sparsefleet/serving/redis_rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Clock = std::chrono::steady_clock;

// Room for more bytes: at the front, once the buffer is full. False: a value is longer than half of it.
bool make_room(Received& received) {
    const std::size_t held = received.end - received.begin;
    if (held && received.end < received.size) return true;
    if (2 * held > received.size) return false;
    std::memmove(received.data, received.data + received.begin, held);
    received.begin = 0;
    received.end = held;
    return true;
}

// Waits for bytes and appends them. Returns an errno, 0 if all is well.
int receive(int socket, Clock::time_point deadline, Received& received) {
    while (true) {
        const ssize_t count =
            ::recv(socket, received.data + received.end, received.size - received.end, MSG_DONTWAIT);
        if (count > 0) {
            received.end += static_cast<std::size_t>(count);
            return 0;
        }
        if (count == 0) return ECONNRESET;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
        const std::chrono::duration<double, std::milli> left = deadline - Clock::now();
        if (left.count() <= 0) return ETIMEDOUT;
        pollfd wanted{socket, POLLIN, 0};
        if (::poll(&wanted, 1, static_cast<int>(std::ceil(left.count()))) < 0 && errno != EINTR) return errno;
    }
}

// Reads with `read`, which is given the bytes and how many values have been answered, until all have come.
template <typename Read>
BucketsReceived receive_with(const Read& read_some, int socket, double seconds, Received& received,
                             std::size_t answered) {
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    BucketsReceived done;
    done.answered = answered;
    while (true) {
        const BucketsRead read =
            read_some(received.data + received.begin, received.end - received.begin, done.answered);
        received.begin += read.consumed;
        done.answered = read.answered;
        done.status = read.status;
        if (done.status != kMore || socket < 0 || !make_room(received)) return done;
        done.error = receive(socket, deadline, received);
        if (done.error) return done;
    }
}

}  // namespace

BucketsReceived receive_buckets(int socket, double seconds, Received& received, const std::uint64_t* keys,
                                const std::int64_t* at, std::size_t n, std::size_t per_command,
                                std::size_t stride, std::size_t answered, unsigned char* packed,
                                std::uint8_t* found) {
    return receive_with(
        [&](const unsigned char* data, std::size_t size, std::size_t so_far) {
            return read_buckets(data, size, keys, at, n, per_command, stride, so_far, packed, found);
        },
        socket, seconds, received, answered);
}

BucketsReceived receive_hot_rows(int socket, double seconds, Received& received, const std::uint32_t* to,
                                 std::size_t rows, std::size_t stride, unsigned char* packed) {
    return receive_with(
        [&](const unsigned char* data, std::size_t size, std::size_t so_far) {
            return read_hot_rows(data, size, to, rows, stride, so_far, packed);
        },
        socket, seconds, received, 0);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
