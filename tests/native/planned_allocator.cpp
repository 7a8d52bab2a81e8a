// The runtime's allocator without PyTorch: what stands here for PyTorch's default allocator counts
// what it gives and takes back.
#include "runtime/planned_allocator.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace loadmaster::runtime {

// As in runtime/planned_allocator.cpp, and like c10::DataPtr and c10::Allocator of PyTorch.
using Deleter = void (*)(void *);

struct DataPtr {
    void *data;
    std::unique_ptr<void, Deleter> context;
    std::int8_t device_type = 0;
    std::int8_t device_index = -1;
};

class __attribute__((visibility("default"))) Allocator {
  public:
    virtual ~Allocator() = default;
    virtual DataPtr allocate(std::size_t bytes) = 0;
    virtual bool is_simple_data_ptr(const DataPtr &data) const = 0;
    virtual Deleter raw_deleter() const = 0;
    virtual void copy_data(void *to, const void *from, std::size_t bytes) const = 0;
};

} // namespace loadmaster::runtime

namespace {

using namespace loadmaster::runtime;

void check(bool holds, const char *what, int line) {
    if (holds) return;
    std::fprintf(stderr, "planned_allocator.cpp:%d: does not hold: %s\n", line, what);
    std::exit(1);
}
#define CHECK(...) check((__VA_ARGS__), #__VA_ARGS__, __LINE__)

std::atomic<int> given{0};

void give_back(void *memory) {
    if (memory != nullptr) --given;
    std::free(memory);
}

class Standard final : public Allocator {
  public:
    DataPtr allocate(std::size_t bytes) override {
        void *memory = bytes == 0 ? nullptr : std::malloc(bytes);
        if (memory != nullptr) ++given;
        return {memory, {memory, &give_back}};
    }
    bool is_simple_data_ptr(const DataPtr &data) const override {
        return data.data == data.context.get();
    }
    Deleter raw_deleter() const override { return &give_back; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override {
        std::memcpy(to, from, bytes);
    }
};

Allocator *planned = nullptr;
int installed = 0;

void set_allocator(void *allocator, std::uint8_t priority) {
    CHECK(priority > 0);
    planned = static_cast<Allocator *>(allocator);
    ++installed;
}

// An arena that is known to the allocator for as long as this lives.
struct Arena {
    alignas(64) std::byte bytes[4096];
    std::uintptr_t base = reinterpret_cast<std::uintptr_t>(bytes);
    Arena() { add_arena(base, sizeof bytes); }
    ~Arena() { remove_arena(base); }
};

void test_it_is_installed_once() {
    static Standard standard, second;
    install(&set_allocator, &standard);
    install(&set_allocator, &second);
    CHECK(installed == 1);
}

void test_without_a_script_the_default_allocator_serves() {
    {
        DataPtr data = planned->allocate(100);
        CHECK(given == 1 && planned->is_simple_data_ptr(data));
        std::memset(data.data, 1, 100);
        DataPtr copy = planned->allocate(100);
        planned->copy_data(copy.data, data.data, 100);
        CHECK(std::memcmp(copy.data, data.data, 100) == 0);
    }
    CHECK(given == 0);
    CHECK(planned->allocate(0).data == nullptr);
}

void test_a_script_gives_addresses_in_order() {
    const Arena arena;
    const std::vector<Grant> grants{{64, 0}, {128, 64}, {64, -1}, {64, 1024}};
    begin(grants, arena.base);
    {
        DataPtr first = planned->allocate(64), second = planned->allocate(128),
                elsewhere = planned->allocate(64), last = planned->allocate(64);
        CHECK(first.data == arena.bytes && second.data == arena.bytes + 64 &&
            last.data == arena.bytes + 1024);
        CHECK(elsewhere.data != nullptr && given == 1);
        std::memset(last.data, 7, 64);
    }
    CHECK(given == 0);
    CHECK(end() == 0);
    DataPtr after = planned->allocate(64);
    CHECK(given == 1 && after.data != arena.bytes);
}

void test_grants_may_be_skipped_and_what_was_not_foreseen_is_counted() {
    const Arena arena;
    const std::vector<Grant> grants{{64, 0}, {128, 64}, {256, 256}};
    begin(grants, arena.base);
    {
        DataPtr second = planned->allocate(128);
        CHECK(second.data == arena.bytes + 64);
        DataPtr first = planned->allocate(64); // its turn is over
        CHECK(given == 1);
        DataPtr unknown = planned->allocate(65), nothing = planned->allocate(0);
        CHECK(given == 2 && nothing.data == nullptr);
        DataPtr third = planned->allocate(256);
        CHECK(third.data == arena.bytes + 256);
    }
    CHECK(end() == 2 && given == 0);
    begin(grants, arena.base);
    CHECK(end() == 0);
}

void test_what_is_in_use_is_not_given_again() {
    const Arena arena;
    const std::vector<Grant> grants{{64, 0}, {128, 0}, {64, 64}};
    begin(grants, arena.base);
    {
        DataPtr first = planned->allocate(64); // longer than when it was recorded
        DataPtr second = planned->allocate(128);
        CHECK(first.data == arena.bytes && second.data != nullptr && given == 1);
        DataPtr third = planned->allocate(64);
        CHECK(third.data == arena.bytes + 64);
    }
    CHECK(end() == 1 && given == 0);
    begin(grants, arena.base);
    planned->raw_deleter()(planned->allocate(64).context.release());
    CHECK(planned->allocate(128).data == arena.bytes);
    CHECK(planned->allocate(64).data == arena.bytes + 64);
    CHECK(end() == 0 && given == 0);
}

void test_raw_memory_goes_back_to_where_it_came_from() {
    Arena arena;
    planned->raw_deleter()(arena.bytes + 100); // the plan's: stays
    DataPtr data = planned->allocate(10);
    planned->raw_deleter()(data.context.release());
    CHECK(given == 0);
}

void test_a_recording_says_what_was_allocated_and_when_it_was_freed() {
    start_recording();
    {
        DataPtr kept = planned->allocate(100);
        {
            DataPtr brief = planned->allocate(200);
        }
        DataPtr raw = planned->allocate(300);
        planned->raw_deleter()(raw.context.release());
        DataPtr nothing = planned->allocate(0);
        const std::vector<Seen> seen = stop_recording();
        CHECK(seen.size() == 3);
        CHECK(seen[0].address == kept.data && seen[0].bytes == 100 && seen[0].freed == -1);
        CHECK(seen[1].bytes == 200 && seen[1].freed == 2);
        CHECK(seen[2].bytes == 300 && seen[2].freed == 3);
    }
    CHECK(given == 0);
    start_recording();
    CHECK(stop_recording().empty());
}

void test_threads_have_scripts_of_their_own() {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number)
        threads.emplace_back([] {
            for (int round = 0; round < 200; ++round) {
                const Arena arena;
                const std::vector<Grant> grants{{64, 128}, {64, -1}};
                begin(grants, arena.base);
                start_recording();
                DataPtr first = planned->allocate(64), second = planned->allocate(64),
                        third = planned->allocate(64);
                CHECK(first.data == arena.bytes + 128 && third.data != first.data);
                CHECK(stop_recording().size() == 2 && end() == 1);
            }
        });
    for (std::thread &thread : threads) thread.join();
    CHECK(given == 0);
}

} // namespace

int main() {
    test_it_is_installed_once();
    test_without_a_script_the_default_allocator_serves();
    test_a_script_gives_addresses_in_order();
    test_grants_may_be_skipped_and_what_was_not_foreseen_is_counted();
    test_what_is_in_use_is_not_given_again();
    test_raw_memory_goes_back_to_where_it_came_from();
    test_a_recording_says_what_was_allocated_and_when_it_was_freed();
    test_threads_have_scripts_of_their_own();
}
