// A thread whose stack is deep enough for a search that recurses once for each buffer: the stacks
// that threads get by default are 128 KiB with some C libraries.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <new>
#include <utility>

#if defined(_WIN32)
#include <thread>
#else
#include <pthread.h>
#endif

namespace loadmaster {

class DeepThread {
  public:
    // `body` must not throw. Throws std::bad_alloc if there is no thread to be had.
    explicit DeepThread(std::function<void()> body);
    DeepThread(const DeepThread &) = delete;
    DeepThread &operator=(const DeepThread &) = delete;
    ~DeepThread();

  private:
    std::function<void()> body_;
#if defined(_WIN32)
    std::thread thread_;
#else
    pthread_t thread_{};
#endif
};

#if defined(_WIN32)

inline DeepThread::DeepThread(std::function<void()> body)
    : body_(std::move(body)), thread_([this] { body_(); }) {}
inline DeepThread::~DeepThread() { thread_.join(); }

#else

inline DeepThread::DeepThread(std::function<void()> body) : body_(std::move(body)) {
    // Address space only: pages are taken as the search goes deeper. Two KiB for each of the most
    // buffers that the exact search takes.
    constexpr std::size_t kStack = std::size_t{32} << 20;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) throw std::bad_alloc();
    pthread_attr_setstacksize(&attributes, kStack);
    const auto run = [](void *self) -> void * {
        static_cast<DeepThread *>(self)->body_();
        return nullptr;
    };
    const int failed = pthread_create(&thread_, &attributes, run, this);
    pthread_attr_destroy(&attributes);
    if (failed != 0) throw std::bad_alloc();
}
inline DeepThread::~DeepThread() { pthread_join(thread_, nullptr); }

#endif

// Calls `body(i, own)` for 0 .. `count` on some threads, `own` on that of the caller, until one
// says that it settles the matter: none that comes after it by number begins then. With
// `last_first` the last begin first where there are several threads.
template <typename Body>
void until_settled(std::int64_t count, std::int64_t threads, bool last_first,
    std::atomic<std::int64_t> &settled, const Body &body) {
    std::atomic<std::int64_t> next = 0;
    threads = std::min(threads, count);
    const auto work = [&](bool own) {
        for (std::int64_t taken; (taken = next++) < count;) {
            const std::int64_t i = last_first && threads > 1 ? count - 1 - taken : taken;
            if (settled < i || !body(i, own)) continue;
            for (std::int64_t first = settled;
                i < first && !settled.compare_exchange_weak(first, i);) {
            }
        }
    };
    std::deque<DeepThread> others;
    for (std::int64_t t = 1; t < threads; ++t) others.emplace_back([&] { work(false); });
    work(true);
}

} // namespace loadmaster
