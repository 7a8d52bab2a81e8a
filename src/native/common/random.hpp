// Random numbers that are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loadmaster {

// SplitMix64 (Steele, Lea and Flood, 2014).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    // The same for any number of threads: every stream has its own key.
    Random(std::uint64_t seed, std::uint64_t stream)
        : state_(mixed(seed) + mixed(stream + 0x632be59bd9b4e019u)) {}

    std::uint64_t bits() { return mixed(state_ += 0x9e3779b97f4a7c15u); }
    // 0 .. below - 1, for `below` far less than 2^32.
    std::int32_t below(std::int32_t limit) {
        return static_cast<std::int32_t>(
            ((bits() >> 32) * static_cast<std::uint64_t>(limit)) >> 32);
    }
    // In [0, 1).
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    // 0 .. count - 1.
    std::size_t index(std::size_t count) {
        return static_cast<std::size_t>(uniform() * static_cast<double>(count));
    }

  private:
    static std::uint64_t mixed(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

} // namespace loadmaster
