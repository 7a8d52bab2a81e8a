// One tiling of a loop nest for its cycles, its traffic, its buffers and its deliveries.
#pragma once

#include <cstdint>
#include <span>

namespace loadmaster::cost {

enum class Style : std::int64_t { weight_stationary, output_stationary, row_stationary, roofline };

// A loop nest; every number is whole and far below 2^53. `element` is bytes of an element of
// arithmetic; bytes of operands are those that the job says, over the whole nest.
struct Nest {
    double groups, batch, k, c, y, x, r, s, repeats, stride_y, stride_x, dilation_y, dilation_x,
        element, input_bytes, weight_bytes, output_bytes;
};

// One shape of a core's array.
struct Shape {
    double rows, columns;
};

// Seconds of a link for a byte of each operand, as far as a core can count on it.
struct Prices {
    double input, weight, output;
};

struct Core {
    Style style;
    std::span<const Shape> shapes; // at least one; of a flexible array several
    double clock, local_buffer;    // hertz, bytes of an element
    double network; // bytes/s between private memory and array; infinite if it carries all
    double loading; // bytes/s of weights into a stationary array that waits for them; infinite if
                    // it works meanwhile
    std::span<const Prices> prices; // at least one; a tiling is chosen for each
    double read, write; // bytes/s of the link with which a first tile arrives and a last one leaves
    double burst;       // bytes that the memory reads at once
    double accumulator; // bytes of a partial sum
};

// What a nest takes in one tiling. `times` are ratios of bytes moved to an operand's bytes, tiles
// are bytes of the private buffer; `cycles` are those of the array, filling, draining and loading
// it included; `lead` seconds pass until the first tile is there, after the last is done, and where
// results have no room to wait for the link.
struct Tiling {
    double input_times, weight_times, input_tile, weight_tile, output_tile, cycles, delivered, lead;
};

// For each of the core's prices the tiling of the least cost within `capacity` bytes of private
// buffer, or where none fits the smallest, into `best`. `rate` is multiply-accumulates of an
// element of the array in a cycle. The cost is the time of the slower of core and links, half of
// that of the links, and an eighth of those of core and deliveries: of two tilings that take
// equally long that which moves less is taken, and one that is a little slower if it moves much
// less. O(sizes of tiles).
void choose_tilings(
    const Nest &nest, const Core &core, double rate, double capacity, std::span<Tiling> best);

// The nest as a single tile, for cores whose private memory nobody plans.
void single_tiles(const Nest &nest, const Core &core, double rate, std::span<Tiling> best);

} // namespace loadmaster::cost
