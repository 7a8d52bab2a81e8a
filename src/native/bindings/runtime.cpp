// Python bindings of the runtime's allocator.
#include "bindings/arguments.hpp"
#include "runtime/planned_allocator.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace loadmaster;

namespace {

// A kernel's allocations, kept in native form: a kernel of a microsecond should not wait for their
// conversion.
struct Script {
    std::vector<runtime::Grant> grants;

    explicit Script(const std::vector<std::tuple<std::int64_t, std::int64_t>> &pairs) {
        for (const auto &[bytes, offset] : pairs) {
            require(bytes > 0 && offset >= -1, "grants: bytes are positive, offsets at least -1");
            grants.push_back({bytes, offset});
        }
    }
};

void install(std::uintptr_t set_allocator, std::uintptr_t standard) {
    require(set_allocator != 0 && standard != 0,
        "install: addresses of SetCPUAllocator and of the default allocator are needed");
    runtime::install(reinterpret_cast<void (*)(void *, std::uint8_t)>(set_allocator),
        reinterpret_cast<void *>(standard));
}

std::vector<std::tuple<std::uintptr_t, std::int64_t, std::int64_t>> stop_recording() {
    std::vector<std::tuple<std::uintptr_t, std::int64_t, std::int64_t>> rows;
    for (const runtime::Seen &seen : runtime::stop_recording())
        rows.emplace_back(reinterpret_cast<std::uintptr_t>(seen.address), seen.bytes, seen.freed);
    return rows;
}

} // namespace

void bind_runtime(nb::module_ &module) {
    nb::set_leak_warnings(
        false); // compiled models live in caches of PyTorch until the process ends
    nb::class_<Script>(module, "AllocationScript")
        .def(nb::init<const std::vector<std::tuple<std::int64_t, std::int64_t>> &>(), "grants"_a)
        .def(
            "begin",
            [](const Script &self, std::uintptr_t base) { runtime::begin(self.grants, base); },
            "base"_a);
    module.def("end_script", &runtime::end);
    module.def("install_allocator", &install, "set_allocator"_a, "standard"_a);
    module.def("add_arena", &runtime::add_arena, "base"_a, "bytes"_a);
    module.def("remove_arena", &runtime::remove_arena, "base"_a);
    module.def("start_recording", &runtime::start_recording);
    module.def("stop_recording", &stop_recording);
}
