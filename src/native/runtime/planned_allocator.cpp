#include "runtime/planned_allocator.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace loadmaster::runtime {

using Deleter = void (*)(void *);

// c10::DataPtr
struct DataPtr {
    void *data;
    std::unique_ptr<void, Deleter> context;
    std::int8_t device_type = 0; // CPU
    std::int8_t device_index = -1;
};

// c10::Allocator: the order of the virtual functions is its binary interface. Visible, and not in
// an unnamed namespace: else the compiler may take our allocator for the only one there is and call
// it directly, and it calls itself until the stack is full.
class __attribute__((visibility("default"))) Allocator {
  public:
    virtual ~Allocator() = default;
    virtual DataPtr allocate(std::size_t bytes) = 0;
    virtual bool is_simple_data_ptr(const DataPtr &data) const = 0;
    virtual Deleter raw_deleter() const = 0;
    virtual void copy_data(void *to, const void *from, std::size_t bytes) const = 0;
};

namespace {

struct Script {
    std::span<const Grant> grants;
    std::uintptr_t base = 0;
    std::size_t next = 0;
    std::int64_t unforeseen = 0;
    bool active = false;
    std::vector<Grant> live; // those in use
};

struct Recording {
    std::vector<Seen> seen;
    std::unordered_map<const void *, std::size_t> live;
    bool active = false;
};

thread_local Script script;
thread_local Recording recording;
std::atomic<Allocator *> standard{nullptr};

// The arena's memory is the plan's: it is free for the script's later grants, and for nothing else.
void keep(void *memory) {
    if (!script.active) return;
    const auto offset =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory) - script.base);
    std::erase_if(script.live, [&](const Grant &own) { return own.offset == offset; });
}

struct Arenas {
    std::shared_mutex lock;
    std::unordered_map<std::uintptr_t, std::size_t> bytes; // by address

    bool hold(const void *memory) {
        const std::shared_lock guard(lock);
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        for (const auto &[base, size] : bytes)
            if (address >= base && address < base + size) return true;
        return false;
    }
};
Arenas arenas;

// For memory of any origin: raw allocations (those of oneDNN) come without a deleter of their own.
void release(void *memory) {
    if (arenas.hold(memory)) return keep(memory);
    if (recording.active) {
        if (const auto found = recording.live.find(memory); found != recording.live.end()) {
            recording.seen[found->second].freed = std::ssize(recording.seen);
            recording.live.erase(found);
        }
    }
    standard.load(std::memory_order_relaxed)->raw_deleter()(memory);
}

// The script's address for an allocation, or null. A kernel may skip allocations that were
// foreseen. It may also add some or keep them for longer, as optimizers do whose options have
// changed: then allocations get grants of others, which must not overlap what is in use.
void *granted(std::size_t bytes) {
    const std::int64_t size = bytes;
    const auto rest = script.grants.subspan(script.next);
    const auto grant = std::ranges::find(rest, size, &Grant::bytes);
    const auto in_use = [&](const Grant &own) {
        return own.offset < grant->offset + size && grant->offset < own.offset + own.bytes;
    };
    const bool unforeseen =
        grant == rest.end() || (grant->offset >= 0 && std::ranges::any_of(script.live, in_use));
    if (unforeseen) return ++script.unforeseen, nullptr;
    script.next += static_cast<std::size_t>(grant - rest.begin()) + 1;
    if (grant->offset < 0) return nullptr;
    script.live.push_back(*grant);
    return reinterpret_cast<void *>(script.base + static_cast<std::uintptr_t>(grant->offset));
}

class PlannedAllocator final : public Allocator {
  public:
    DataPtr allocate(std::size_t bytes) override {
        if (script.active && bytes > 0) {
            if (void *memory = granted(bytes)) return {memory, {memory, &keep}};
        }
        DataPtr made = standard.load(std::memory_order_relaxed)->allocate(bytes);
        if (recording.active && bytes > 0) {
            void *memory = made.context.release();
            made.context = {memory, &release};
            recording.live[memory] = recording.seen.size();
            recording.seen.push_back({memory, static_cast<std::int64_t>(bytes), -1});
        }
        return made;
    }
    bool is_simple_data_ptr(const DataPtr &data) const override {
        return data.data == data.context.get();
    }
    Deleter raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override {
        standard.load(std::memory_order_relaxed)->copy_data(to, from, bytes);
    }
};

} // namespace

void install(void (*set_allocator)(void *, std::uint8_t), void *fallback) {
    static PlannedAllocator allocator; // never destroyed before the tensors that it made
    Allocator *expected = nullptr;
    if (!standard.compare_exchange_strong(expected, static_cast<Allocator *>(fallback))) return;
    constexpr std::uint8_t kPriority = 100;
    set_allocator(&allocator, kPriority);
}

void add_arena(std::uintptr_t base, std::size_t bytes) {
    const std::unique_lock guard(arenas.lock);
    arenas.bytes[base] = bytes;
}

void remove_arena(std::uintptr_t base) {
    const std::unique_lock guard(arenas.lock);
    arenas.bytes.erase(base);
}

void begin(std::span<const Grant> grants, std::uintptr_t base) {
    script = {grants, base, 0, 0, true, {}};
}

std::int64_t end() {
    script.active = false;
    return script.unforeseen;
}

void start_recording() {
    recording.seen.clear();
    recording.live.clear();
    recording.active = true;
}

std::vector<Seen> stop_recording() {
    recording.active = false;
    recording.live.clear();
    return std::move(recording.seen);
}

} // namespace loadmaster::runtime
