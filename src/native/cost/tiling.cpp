#include "cost/tiling.hpp"

#include "common/limits.hpp"
#include "common/rows.hpp"

#include "cost/extents.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace loadmaster::cost {
namespace {

constexpr double spread = 0.125; // of the sum of times that overlap, in the cost of a tiling

// Output positions that a tile covers: whole images, rows of one, or columns of one row; only one
// of the three loops is cut.
struct Positions {
    double batch, y, x;
};

// Extents along which a style uses the array at once, and what it fetches of the input channels at
// a time.
struct Units {
    double k, c, y, side;
};

// The best tiling so far; as long as none has been found that fits, its cost is infinite.
struct Found {
    Tiling tiling{};
    double cost = kInfinite, size = kInfinite;

    bool beats(const Found &other) const {
        return cost < other.cost || (cost == other.cost && size < other.size);
    }
};

class Search {
  public:
    Search(const Nest &nest, const Core &core, Shape shape, double rate, double capacity)
        : n_(nest), core_(core), rows_(shape.rows), columns_(shape.columns), rate_(rate),
          capacity_(capacity), taps_(nest.r * nest.s),
          outputs_(nest.groups * nest.batch * nest.y * nest.x * nest.k),
          weights_(nest.groups * nest.k * nest.c * taps_),
          down_(nest.y, nest.r, nest.stride_y, nest.dilation_y),
          across_(nest.x, nest.s, nest.stride_x, nest.dilation_x),
          input_element_(nest.input_bytes /
              (nest.groups * nest.batch * nest.c * down_.extent * across_.extent)),
          weight_element_(nest.weight_bytes / weights_),
          output_element_(nest.output_bytes / outputs_), units_(units()),
          network_(core.network < kInfinite ? core.network
                                            : 16 * std::sqrt(rows_ * columns_) * core.clock),
          found_(core.prices.size()), outside_(core.prices.size()) {}

    void run() {
        const std::vector<Positions> positions = position_tiles();
        const std::vector<double> ks = channel_tiles(), chunks = input_chunks();
        for (double groups : group_tiles())
            for (const Positions &p : positions) {
                place(groups, p);
                for (double k : ks) {
                    if (k <= units_.k) held_input(groups, k, n_.c);
                    held_weights(groups, k, n_.c);
                    in_chunks(groups, k, chunks);
                }
            }
    }

    void whole() {
        place(n_.groups, {n_.batch, n_.y, n_.x});
        capacity_ = kInfinite;
        held_weights(n_.groups, n_.k, n_.c);
        for (Found &found : found_) found.tiling.lead = 0;
    }

    // One for each price.
    const std::vector<Found> &found() const { return found_; }

  private:
    // Output channels of a group, input channels, rows: what stands in the array at once; and
    // groups that stand in it side by side.
    Units units() const {
        const double fill = up(core_.burst / n_.element);
        switch (core_.style) {
        case Style::weight_stationary: {
            const double side = std::min(
                down(columns_ / std::min(n_.c, columns_)), down(rows_ / std::min(n_.k, rows_)));
            return {rows_, columns_ * ceil_div(fill, columns_), 1, std::min(side, n_.groups)};
        }
        case Style::output_stationary:
            return {columns_, fill, up(rows_ / n_.x),
                std::min(n_.groups, std::max(1.0, down(columns_ / n_.k)))};
        case Style::row_stationary:
            return {filters(), fill, columns_,
                std::min(n_.groups, std::max(1.0, down(filters() / n_.k)))};
        default:
            return {1, fill, 1, 1};
        }
    }

    // Output channels whose filter rows stand below each other in a row-stationary array.
    double filters() const { return std::max(1.0, down(rows_ / std::min(n_.r, rows_))); }
    double chunk() const { return std::min(n_.c, units_.c); }

    static void add(std::vector<double> &sizes, double size) {
        if (std::ranges::find(sizes, size) == sizes.end()) sizes.push_back(size);
    }

    // Groups that share the array, as many more as fill a burst, all, and one.
    std::vector<double> group_tiles() const {
        std::vector<double> sizes{units_.side};
        if (n_.groups > 1) {
            add(sizes,
                std::min(n_.groups,
                    units_.side * ceil_div(core_.burst, units_.side * n_.c * n_.element)));
            add(sizes, n_.groups);
            add(sizes, 1);
        }
        return sizes;
    }

    // All output channels, the array's extent times powers of two and three times these, and halves
    // of it, which leave elements idle.
    std::vector<double> channel_tiles() const {
        std::vector<double> sizes;
        for (double size = units_.k; size < n_.k; size *= 2) {
            sizes.push_back(size);
            if (3 * size < n_.k) sizes.push_back(3 * size);
        }
        sizes.push_back(n_.k);
        for (double size = std::min(units_.k, n_.k); size > 1;) add(sizes, size = up(size / 2));
        return sizes;
    }

    // Parts of the input channels: single ones, and multiples of what is fetched at once; the
    // larger they are the fewer passes sums take.
    std::vector<double> input_chunks() const {
        std::vector<double> sizes;
        if (n_.c > 1) sizes.push_back(1);
        for (double size = chunk(); size < n_.c; size *= 2) add(sizes, size);
        return sizes;
    }

    // Tiles of a part of the input channels, as far as they may be the best: whatever the part, so
    // many bytes cross the port, and sums take so much room.
    void in_chunks(double groups, double k, const std::vector<double> &chunks) {
        const bool sums_leave = core_.style != Style::output_stationary;
        if (fits_ && sums_leave && groups * k * tile_positions_ * core_.accumulator > capacity_)
            return;
        if (fits_ &&
            !promises(Cut(n_.k, k).tiles() * halo(false) * read_share_, tiles_ * n_.repeats))
            return;
        for (double c : chunks) {
            if (fits_ && 2 * input_tile(groups, c, rows_read_) > capacity_) return;
            held_input(groups, k, c);
            held_weights(groups, k, c);
        }
    }

    // An extent, and the tiles of two to as many parts of it, ever more of them at a time.
    static std::vector<double> parts_of(double extent) {
        std::vector<double> sizes{extent};
        for (double parts = 2; parts < extent; parts = up(parts * 1.4))
            add(sizes, ceil_div(extent, parts));
        return sizes;
    }

    std::vector<Positions> position_tiles() const {
        std::vector<Positions> tiles;
        for (double size = n_.batch; size > 1; size = up(size / 2))
            tiles.push_back({size, n_.y, n_.x});
        std::vector<double> sizes = parts_of(n_.y);
        for (double size = units_.y; size < n_.y; size *= 2) add(sizes, size);
        add(sizes, 1);
        for (double size : sizes) tiles.push_back({1, size, n_.x});
        // Rows stand side by side in a row-stationary array: all of them stay when columns are cut.
        if (core_.style == Style::row_stationary && n_.y > 1)
            for (double size : parts_of(n_.x))
                if (size < n_.x) tiles.push_back({1, n_.y, size});
        for (double size = n_.x; size > 1;) tiles.push_back({1, 1, size = up(size / 2)});
        return tiles;
    }

    template <typename Figure> double over_positions(Figure figure) const {
        if (at_.batch > 1 || (at_.y == n_.y && at_.x == n_.x))
            return Cut(n_.batch, at_.batch).sum([&](double b) { return figure(b * n_.y * n_.x); });
        if (at_.x == n_.x)
            return n_.batch * Cut(n_.y, at_.y).sum([&](double y) { return figure(y * n_.x); });
        return n_.batch * n_.y * Cut(n_.x, at_.x).sum(figure);
    }

    // What depends on the tile's positions and groups alone.
    void place(double groups, const Positions &positions) {
        at_ = positions;
        tiles_ = up(n_.batch / at_.batch) * up(n_.y / at_.y) * up(n_.x / at_.x);
        of_groups_ = Cut(n_.groups, groups).tiles();
        tile_positions_ = at_.batch * at_.y * at_.x;
        rows_read_ = down_.touched(at_.y);
        columns_read_ = across_.touched(at_.x);
        halo_x_ = Cut(n_.x, at_.x).sum([&](double x) { return across_.touched(x); }) /
            across_.touched(n_.x);
        halo_y_ =
            Cut(n_.y, at_.y).sum([&](double y) { return down_.touched(y); }) / down_.touched(n_.y);
        read_share_ = down_.touched(n_.y) * across_.touched(n_.x) / (down_.extent * across_.extent);
    }

    // Bytes read for a byte that is needed: at least a burst for every run of bytes next to each
    // other, channels being the innermost.
    double bursts(double groups, double c) const {
        const bool all_channels = c == n_.c && groups == n_.groups;
        if (all_channels && across_.skipped() == 1 && at_.x == n_.x) return 1;
        const double channels = c * (c == n_.c ? groups : 1) * n_.element;
        const double run = channels * (all_channels ? across_.run(columns_read_) : 1);
        const double most = across_.skipped() * (n_.c * n_.groups * n_.element / channels);
        return std::clamp(core_.burst / run, 1.0, std::max(1.0, most));
    }

    double input_tile(double groups, double c, double rows) const {
        return at_.batch * groups * c * rows * columns_read_ * input_element_;
    }

    // The tile of the input and what the next one does not share with it, where channels stay and
    // tiles follow one another along rows or columns.
    double sliding_tile(double groups) const {
        const double tile = input_tile(groups, n_.c, rows_read_);
        const double stays = at_.x < n_.x ? std::min(1.0, at_.x * across_.stride / columns_read_)
            : at_.y < n_.y                ? std::min(1.0, at_.y * down_.stride / rows_read_)
                                          : 1;
        return tile * (tiles_ * of_groups_ > 1 ? 1 + stays : 1);
    }

    // Filters of the array's size, a tap (row-stationary: a filter) at a time: what streams by if
    // weights do not stay.
    double weight_block(double groups, double k, double c) const {
        const double taps = core_.style == Style::row_stationary ? taps_ : 1;
        return groups * std::min(k, units_.k) * std::min(c, chunk()) * taps * weight_element_;
    }

    // Where sums stay, positions that do not stand in the array at once pass one after another, and
    // each takes all that is added up: these filters wait for the last.
    double waiting_weights(double groups, double k, double c) const {
        const bool at_once = core_.style != Style::output_stationary ||
            ceil_div(tile_positions_, rows_) <=
                std::max(1.0, down(core_.local_buffer / core_.accumulator));
        return at_once ? weight_block(groups, k, c)
                       : groups * std::min(k, units_.k) * c * taps_ * weight_element_;
    }

    // The tile of the input stays while filters stream by; with all channels, sums are done when
    // they leave the array's block.
    void held_input(double groups, double k, double c) {
        const bool all = c == n_.c;
        const double filters = Cut(n_.k, k).tiles(), folds = all ? 1 : filters;
        const double block = waiting_weights(groups, k, c);
        const double in = all ? sliding_tile(groups) : 2 * input_tile(groups, c, rows_read_);
        const double weight_times = tiles_ * n_.repeats;
        consider(groups, k, c, folds * halo(all), weight_times, in, 2 * block,
            input_tile(groups, c, rows_read_) + weight_block(groups, k, c));
    }

    // The tile of filters stays while the input streams by in tiles.
    void held_weights(double groups, double k, double c) {
        const bool all = c == n_.c;
        const double filters = Cut(n_.k, k).tiles();
        const double tile = groups * k * c * taps_ * weight_element_;
        const bool single = all && filters * of_groups_ == 1;
        const double in = all ? sliding_tile(groups) : 2 * input_tile(groups, c, rows_read_);
        const double weight_times = single ? 1 : (all ? 1 : tiles_) * n_.repeats;
        const double times = all && tiles_ == 1 ? 1 : filters;
        consider(groups, k, c, times * halo(all), weight_times, in, single ? tile : 2 * tile,
            input_tile(groups, c, rows_read_) + tile);
    }

    // Input fetched again at the edges of tiles: what the next one shares stays where all channels
    // of a tile do, columns if it is the next in its row.
    double halo(bool all) const { return all ? (at_.x == n_.x ? 1 : halo_y_) : halo_x_ * halo_y_; }

    void consider(double groups, double k, double c, double input_times, double weight_times,
        double input_buffer, double weight_buffer, double first) {
        Tiling t{};
        t.input_times = input_times * read_share_ * bursts(groups, c);
        t.weight_times = weight_times;
        t.input_tile = input_buffer;
        t.weight_tile = weight_buffer;
        if (fits_ &&
            (input_buffer + weight_buffer > capacity_ || !promises(t.input_times, t.weight_times)))
            return;
        const double passes = deliver(groups, k, c, t);
        const double block = groups * std::min(k, units_.k) * tile_positions_,
                     sums = groups * (c < n_.c ? k : std::min(k, units_.k)) * tile_positions_;
        const double row = groups * std::min(k, units_.k) * at_.x * output_element_;
        const bool several = outputs_ > block;
        // Sums that leave the array before they are done wait in the buffer; results that are done
        // leave it while the next ones are made, or, where they have no room, as they are made, for
        // which the array waits.
        const double held =
            input_buffer + weight_buffer + (passes > 1 ? sums * core_.accumulator : row);
        const double next = several ? (passes > 1 ? block * output_element_ : row) : 0;
        const bool waits = passes > 1 && next > row && held + next > capacity_;
        t.output_tile = held - input_buffer - weight_buffer + (waits ? row : next);
        const double size = input_buffer + weight_buffer + t.output_tile;
        if (size > capacity_) {
            if (fits_ || size >= found_[0].size) return;
            for (Found &found : found_) found = {t, kInfinite, size};
            return;
        }
        if (!fits_) promises(t.input_times, t.weight_times);
        fits_ = true;
        const double busy = cycles(groups, k, c);
        t.cycles += busy;
        // Results are made in the last pass, in which filters for the next one arrive as well: what
        // their leaving takes beyond it.
        const double wait = std::max(0.0,
            (n_.output_bytes + n_.weight_bytes * t.weight_times / passes) / core_.write -
                busy / passes / core_.clock);
        const double as_made = row / core_.write + (passes > 1 ? wait : 0);
        const double last = waits
            ? as_made
            : std::min(as_made, (passes > 1 ? block * output_element_ : row) / core_.write);
        t.lead = core_.style == Style::roofline ? 0 : first / core_.read + last;
        const double inside =
            std::max(t.cycles / core_.clock, t.delivered / core_.network) + t.lead;
        for (std::size_t i : indices(found_.size())) {
            const double outside = outside_[i];
            const Found here{t,
                std::max(inside, outside) +
                    (inside + 4 * outside + t.delivered / network_) * spread,
                size};
            if (here.beats(found_[i])) found_[i] = here;
        }
    }

    // Work out what the links take at each price if operands cross so often, and whether that
    // leaves a tiling the chance to be the best at one.
    bool promises(double input_times, double weight_times) {
        const double input = n_.input_bytes * input_times, weights = n_.weight_bytes * weight_times;
        bool any = false;
        for (std::size_t i : indices(found_.size())) {
            const Prices &price = core_.prices[i];
            outside_[i] =
                input * price.input + weights * price.weight + n_.output_bytes * price.output;
            any |= outside_[i] * (1 + 4 * spread) <= found_[i].cost;
        }
        return any;
    }

    // Array cycles of all tiles and repeats. Tiles are a grid: what is a product of loops sums loop
    // by loop. The pipeline stays full between tiles.
    double cycles(double groups, double k, double c) const {
        const Cut g(n_.groups, groups), ks(n_.k, k), cs(n_.c, c);
        double busy = 0;
        switch (core_.style) {
        case Style::weight_stationary:
            busy = g.sum([&](double t) { return ceil_div(t, std::min(units_.side, n_.groups)); }) *
                ks.sum([&](double t) { return ceil_div(t, rows_); }) *
                cs.sum([&](double t) { return ceil_div(t, columns_); }) * n_.batch * n_.y * n_.x *
                taps_;
            break;
        case Style::output_stationary:
            busy = blocks(g, ks, columns_) *
                over_positions([&](double p) { return ceil_div(p, rows_); }) * n_.c * taps_;
            break;
        case Style::row_stationary:
            busy = n_.batch * n_.x * n_.s * n_.c *
                Cut(n_.y, at_.y).sum([&](double t) { return ceil_div(t, columns_); }) *
                blocks(g, ks, filters()) * ceil_div(n_.r, rows_);
            break;
        default:
            return n_.groups * n_.batch * n_.y * n_.x * n_.k * n_.c * taps_ * n_.repeats /
                (rows_ * columns_) / rate_;
        }
        return (busy / rate_ + rows_ + columns_ - 2) * n_.repeats;
    }

    // Turns in which channels of tiles stand in the array, so many at once, whatever groups they
    // are of; `least` turns for each group of a tile.
    static double blocks(const Cut &groups, const Cut &ks, double at_once, double least = 0) {
        return groups.sum([&](double g) {
            return ks.sum([&](double k) { return std::max(least * g, ceil_div(g * k, at_once)); });
        });
    }

    // Bytes over the on-chip network, and cycles of loading weights, into `t`; what several
    // elements need at once crosses once. Returns in how many passes sums are made.
    double deliver(double groups, double k, double c, Tiling &t) const {
        const Cut g(n_.groups, groups), ks(n_.k, k), cs(n_.c, c);
        const double inputs =
            n_.groups * n_.batch * n_.c * down_.touched(n_.y) * across_.touched(n_.x);
        const auto kept = [&](double item, double most) {
            return std::clamp(down(core_.local_buffer / item), 1.0, std::max(1.0, most));
        };
        double weights = weights_, in = inputs, passes = 1;
        switch (core_.style) {
        case Style::weight_stationary:
            weights *= tiles_;
            in = n_.groups * n_.batch * n_.y * n_.x * n_.c * taps_ *
                ks.sum([&](double v) { return ceil_div(v, rows_); });
            passes = cs.sum([&](double v) {
                const double steps = ceil_div(v, columns_) * taps_;
                return ceil_div(steps, kept(n_.element, steps));
            });
            break;
        case Style::output_stationary: {
            weights *= over_positions([&](double p) {
                const double turns = ceil_div(p, rows_);
                return ceil_div(turns, kept(core_.accumulator, turns));
            });
            in = n_.batch * n_.y * n_.x * n_.c * taps_ * blocks(g, ks, columns_, 1);
            const double held = ceil_div(groups * k, columns_) * ceil_div(tile_positions_, rows_);
            passes = held <= kept(core_.accumulator, held) ? 1 : cs.tiles();
            break;
        }
        case Style::row_stationary:
            weights *= n_.batch * Cut(n_.x, at_.x).tiles() *
                Cut(n_.y, at_.y).sum([&](double v) { return ceil_div(v, columns_); });
            in *= blocks(g, ks, filters(), 1) / n_.groups * halo_x_ * halo_y_;
            passes = cs.sum([&](double v) { return ceil_div(v, kept(2 * n_.s * n_.element, v)); }) *
                ceil_div(n_.r, rows_);
            break;
        default:
            break;
        }
        const bool stays =
            core_.style == Style::weight_stationary || core_.style == Style::row_stationary;
        t.cycles = stays ? weights * n_.element * n_.repeats / core_.loading * core_.clock : 0;
        t.delivered = ((weights + in) * n_.element +
                          outputs_ * (n_.element + 2 * core_.accumulator * (passes - 1))) *
            n_.repeats;
        // Without an array that says where sums are, those of a chunk wait in the buffer.
        return core_.style == Style::roofline && c < n_.c ? cs.tiles() : passes;
    }

    Nest n_;
    const Core &core_;
    double rows_, columns_, rate_, capacity_, taps_, outputs_, weights_;
    Axis down_, across_; // the input, along rows and columns
    double input_element_, weight_element_, output_element_;
    Units units_;
    double network_; // bytes/s; of one that carries all, 16 bytes a cycle for each element along an
                     // edge of a square array
    Positions at_{};
    double tiles_ = 1, of_groups_ = 1, tile_positions_ = 1, rows_read_ = 1, columns_read_ = 1,
           halo_x_ = 1, halo_y_ = 1, read_share_ = 1;
    bool fits_ = false;
    std::vector<Found> found_;
    std::vector<double> outside_; // seconds of the links of the tiling that is looked at
};

// Of the searches of all shapes that the array can take, the best tiling for each price.
template <typename Run>
void over_shapes(const Nest &nest, const Core &core, double rate, double capacity,
    std::span<Tiling> best, Run run) {
    std::vector<Found> found(core.prices.size());
    for (Shape shape : core.shapes) {
        Search search(nest, core, shape, rate, capacity);
        run(search);
        for (std::size_t i : indices(found.size()))
            if (search.found()[i].beats(found[i])) found[i] = search.found()[i];
    }
    std::transform(
        found.begin(), found.end(), best.begin(), [](const Found &one) { return one.tiling; });
}

} // namespace

void choose_tilings(
    const Nest &nest, const Core &core, double rate, double capacity, std::span<Tiling> best) {
    over_shapes(nest, core, rate, capacity, best, [](Search &search) { search.run(); });
}

void single_tiles(const Nest &nest, const Core &core, double rate, std::span<Tiling> best) {
    over_shapes(nest, core, rate, kInfinite, best, [](Search &search) { search.whole(); });
}

} // namespace loadmaster::cost
