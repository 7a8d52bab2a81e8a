// Extents of loops: how many tiles they make, and what of the input they read.
#pragma once

#include <cstdint>

namespace loadmaster::cost {

// Rounding of numbers that are not negative and below 2^62, without a call of the library.
inline double down(double value) { return static_cast<double>(static_cast<std::int64_t>(value)); }
inline double up(double value) {
    const double below = down(value);
    return below < value ? below + 1 : below;
}
inline double ceil_div(double a, double b) { return up(a / b); }

// A loop in tiles of one size: `count` full ones, and a last one of `rest` (0: none).
struct Cut {
    double extent, tile, count, rest;

    Cut(double extent, double tile)
        : extent(extent), tile(tile), count(down(extent / tile)), rest(extent - count * tile) {}

    double tiles() const { return count + (rest > 0); }
    // Sum of a figure over all tiles, the last one included.
    template <typename Figure> double sum(Figure figure) const {
        return count * figure(tile) + (rest > 0 ? figure(rest) : 0.0);
    }
};

// Positions of the input along an axis: `extent` from the first to the last, and for each output a
// `window`. What a dilation leaves out between taps counts as read, as in the windows that plans
// state.
struct Axis {
    double extent, stride, window;

    Axis(double out, double taps, double by, double apart)
        : extent((out - 1) * by + (taps - 1) * apart + 1), stride(by),
          window((taps - 1) * apart + 1) {}

    // What some outputs read: all from the first to the last, or the windows where these do not
    // meet.
    double touched(double out) const {
        return window < stride ? out * window : (out - 1) * stride + window;
    }
    // Positions next to each other, of those that are touched.
    double run(double touched) const { return window < stride ? window : touched; }
    // Positions from the first to the last for each that is touched.
    double skipped() const { return window < stride ? stride / window : 1; }
};

} // namespace loadmaster::cost
