#include "common/radix_sort.hpp"
#include "joint/joint.hpp"
#include "joint/occupancy.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::joint {

namespace {

// A read of one tensor by one job: seconds of the main link if it is streamed, and of the fast link
// if it is not.
struct Use {
    std::int64_t position;
    double main, fast;
};

// Keeping a tensor over its uses [from, to] (indices into its uses; of a produced one `from` is its
// producer's) saves `value`.
struct Item {
    double density;
    std::int64_t tensor;
    std::int32_t from, to;
};

class Chooser {
  public:
    Chooser(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
        std::span<const double> width, const Options &options)
        : work_(work), machine_(machine), options_(options), position_(work.jobs), used_(work.jobs),
          elapsed_(work.jobs + 1, 0.0), near_(work.jobs, 0.0), first_(work.tensors + 1, 0),
          count_(work.tensors, 0), write_(work.tensors, 0.0), streamed_(work.tensors, 0),
          kept_to_(work.tensors, 0) {
        for (const std::int64_t t : options.streamed_tensors) streamed_[t] = 1;
        for (std::size_t at : indices(order.size())) {
            position_[order[at]] = at;
            elapsed_[at + 1] = elapsed_[at] + width[order[at]];
        }
    }

    Stays choose() {
        collect_uses();
        Stays result;
        if (!machine_.in_place && !keep_operands()) {
            result.fit = false;
            result.row_stay.assign(work_.row_job.size(), -1);
            return result;
        }
        keep(items());
        if (machine_.in_place && std::isfinite(options_.streamed_share) &&
            machine_.engine[kFast] > 0.0)
            fetch_once();
        result = stays();
        const std::vector<std::size_t> order = fetched(result.stays);
        fetch_early(result.stays, order);
        if (std::isfinite(options_.fetch_lead)) find_pressing(result.stays, order);
        result.used = used_.bytes();
        return result;
    }

  private:
    bool produced(std::size_t t) const { return work_.producer[t] >= 0; }

    std::span<const Use> uses(std::size_t t) const { return {use_.data() + first_[t], count_[t]}; }
    Use *first_use(std::size_t t) { return use_.data() + first_[t]; }
    char *own(std::size_t t) { return own_.data() + first_[t]; }
    const char *own(std::size_t t) const { return own_.data() + first_[t]; }
    char *gap(std::size_t t) { return gap_.data() + first_[t]; }
    const char *gap(std::size_t t) const { return gap_.data() + first_[t]; }

    void collect_uses() {
        const std::size_t rows = work_.row_job.size();
        for (std::size_t t : indices(work_.tensors)) first_[t + 1] = produced(t);
        for (std::size_t r : indices(rows)) first_[work_.row_tensor[r] + 1] += !work_.row_write[r];
        add_up(first_);
        use_.resize(first_.back());
        own_.assign(first_.back(), 0);
        gap_.assign(first_.back(), 0); // of the last use it stays 0
        // The producer's position is use 0 of what is produced.
        for (std::size_t t : indices(work_.tensors))
            if (produced(t)) first_use(t)[count_[t]++] = {position_[work_.producer[t]], 0.0, 0.0};
        for (std::size_t r : indices(rows)) add_use(r);
        for (std::size_t t : indices(work_.tensors))
            std::ranges::sort(
                first_use(t) + produced(t), first_use(t) + count_[t], {}, &Use::position);
    }

    void add_use(std::size_t r) {
        const std::int64_t *moved = &work_.moved[r * work_.cores];
        const double bytes = static_cast<double>(*std::min_element(moved, moved + work_.cores));
        const std::int64_t t = work_.row_tensor[r], at = position_[work_.row_job[r]];
        if (produced(t))
            near_[at] +=
                bytes / (work_.row_write[r] ? machine_.write[kFast] : machine_.read[kFast]);
        if (work_.row_write[r]) {
            write_[t] += bytes;
            return;
        }
        Use *next = first_use(t) + count_[t];
        if (count_[t] > (produced(t) ? 1U : 0U) && next[-1].position == at) {
            next[-1].main += bytes / machine_.read[kMain];
            next[-1].fast += bytes / machine_.read[kFast];
        } else {
            *next = {at, bytes / machine_.read[kMain], bytes / machine_.read[kFast]};
            ++count_[t];
        }
    }

    // Keep every operand while its job runs, and hold its room for as many positions more as leave
    // room for all; whether there is any.
    bool keep_operands() {
        for (delay_ = options_.release_delay_positions;; delay_ /= 2) {
            if (operands_fit()) return true;
            if (delay_ == 0) return false;
            used_ = Occupancy(work_.jobs);
            std::ranges::fill(own_, 0);
            std::ranges::fill(gap_, 0);
            std::ranges::fill(kept_to_, 0);
        }
    }

    bool operands_fit() {
        for (std::size_t t : indices(work_.tensors))
            for (std::size_t i : indices(uses(t).size()))
                if (!keep(t, static_cast<std::int32_t>(i), static_cast<std::int32_t>(i),
                        machine_.capacity))
                    return false;
        return true;
    }

    double fetch_seconds(std::size_t t) const {
        return static_cast<double>(work_.bytes[t]) / machine_.read[kMain];
    }
    double price(std::size_t memory) const { return options_.link_prices[memory]; }
    double fetch_cost(std::size_t t) const {
        const double fill = static_cast<double>(work_.bytes[t]) / machine_.write[kFast];
        return price(kMain) * fetch_seconds(t) + price(kFast) * fill;
    }
    // By a use in the fast memory.
    double saved(const Use &use) const { return price(kMain) * use.main - price(kFast) * use.fast; }

    void offer(std::vector<Item> &items, std::size_t t, std::size_t from, std::size_t to,
        double value) const {
        if (!(value > 0.0) || work_.room[t] > options_.filled_bytes) return;
        const double time = elapsed_[uses(t)[to].position + 1] - elapsed_[uses(t)[from].position];
        const double occupancy = static_cast<double>(work_.room[t]) * std::max(time, 1e-15);
        items.push_back({value / occupancy, static_cast<std::int64_t>(t),
            static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
    }

    // Up to each reader in turn; only the last saves the write.
    void offer_from_producer(std::vector<Item> &items, std::size_t t) const {
        const auto uses = this->uses(t);
        const auto begun = static_cast<std::ptrdiff_t>(items.size());
        double value = -price(kFast) * write_[t] / machine_.write[kFast];
        for (std::size_t to = 1; to < uses.size(); ++to) {
            value += saved(uses[to]);
            const bool all = to + 1 == uses.size() && !work_.output[t];
            const double write = price(kMain) * write_[t] / machine_.write[kMain];
            offer(items, t, 0, to, value + (all ? write : 0.0));
        }
        std::reverse(items.begin() + begun, items.end());
    }

    // Fetched for one use, or for two that follow one another.
    void offer_fetched(std::vector<Item> &items, std::size_t t) const {
        const auto uses = this->uses(t);
        const double fetch = fetch_cost(t);
        for (std::size_t i : indices(uses.size())) {
            if (i + 1 < uses.size())
                offer(items, t, i, i + 1, saved(uses[i]) + saved(uses[i + 1]) - fetch);
            offer(items, t, i, i, saved(uses[i]) - fetch);
        }
    }

    // Where all operands are fetched: from one use to the next a stay saves a fetch, and one that
    // covers all uses of a result its way out too.
    void offer_gaps(std::vector<Item> &items, std::size_t t) const {
        const std::size_t last = uses(t).size() - 1;
        const double fetch = fetch_cost(t);
        const double leave =
            price(kMain) * static_cast<double>(work_.bytes[t]) / machine_.write[kMain];
        if (produced(t) && !work_.output[t] && last > 0)
            offer(items, t, 0, last, static_cast<double>(last) * fetch + leave);
        for (std::size_t i : indices(last)) offer(items, t, i, i + 1, fetch);
    }

    // The best first; of equals those of earlier tensors, then from earlier uses, then to later
    // ones, which is the order in which they are offered.
    std::vector<Item> items() const {
        std::vector<Item> result;
        for (std::size_t t : indices(work_.tensors)) {
            if (work_.bytes[t] == 0 || uses(t).empty()) continue;
            if (!machine_.in_place) {
                offer_gaps(result, t);
                continue;
            }
            if (streamed_[t]) continue;
            if (produced(t)) offer_from_producer(result, t);
            if (!produced(t) && machine_.engine[kFast] > 0.0 && options_.prefetched_bytes > 0)
                offer_fetched(result, t);
        }
        sort_descending(result, [](const Item &item) { return item.density; });
        return result;
    }

    // The last position for which room is held that is last used at one.
    std::int64_t held_until(std::int64_t position) const {
        return std::min(position + delay_, static_cast<std::int64_t>(work_.jobs) - 1);
    }

    // The positions [begin, over) that a tensor's room is not held in yet, of those from one use to
    // a later one; the room of a use is held for `release_delay_positions` more, in which others
    // may still run.
    void find_added(std::size_t t, std::int32_t from, std::int32_t to) {
        const auto uses = this->uses(t);
        const char *own = this->own(t), *gap = this->gap(t);
        const std::int64_t end = held_until(uses[to].position);
        std::int64_t next = uses[from].position;
        added_.clear();
        std::size_t i = from;
        while (i > 0 && held_until(uses[i - 1].position) >= next) --i;
        for (; i < uses.size() && uses[i].position <= end; ++i) {
            if (!own[i]) continue;
            const std::int64_t first = uses[i].position;
            while (gap[i] && uses[i].position <= end) ++i;
            const std::int64_t last = held_until(uses[i].position);
            if (last < next) continue;
            if (first > next) added_.emplace_back(next, first);
            next = last + 1;
        }
        if (next <= end) added_.emplace_back(next, end + 1);
    }

    // Keep a tensor from one use to a later one if that fits; what of it is kept already costs
    // nothing. O(uses and positions between them).
    bool keep(std::size_t t, std::int32_t from, std::int32_t to, std::int64_t limit) {
        const auto uses = this->uses(t);
        // From its first use on it is offered up to each reader, and kept up to one after another.
        if (own(t)[0]) {
            if (to <= kept_to_[t]) return true;
            from = std::max(from, kept_to_[t]);
        }
        const std::int64_t room = work_.room[t];
        find_added(t, from, to);
        for (const auto &[begin, over] : added_)
            if (used_.lowest_with(begin, over, limit - room) > begin) return false;
        for (const auto &[begin, over] : added_) used_.add(begin, over, room);
        for (std::int32_t i = from; i <= to; ++i) {
            own(t)[i] = 1;
            if (i < to) gap(t)[i] = 1;
        }
        // Runs that touch are one.
        const std::size_t before = from > 0 ? from - 1 : 0,
                          after = std::min<std::size_t>(to + 1, uses.size() - 1);
        for (std::size_t i = before; i < after; ++i)
            if (own(t)[i] && own(t)[i + 1] &&
                held_until(uses[i].position) + 1 >= uses[i + 1].position)
                gap(t)[i] = 1;
        while (gap(t)[kept_to_[t]]) ++kept_to_[t];
        return true;
    }

    // The best items first.
    void keep(const std::vector<Item> &items) {
        for (const Item &item : items) keep(item.tensor, item.from, item.to, options_.filled_bytes);
    }

    struct Left {
        std::int64_t position;
        std::size_t tensor, use;
    };

    // Fetch ahead what is left, in the order of use: nothing is saved, but jobs need not wait for
    // their own streams.
    void fetch_once() {
        std::vector<Left> left;
        for (std::size_t t : indices(work_.tensors))
            if (!produced(t) && work_.bytes[t] > 0 && !streamed_[t])
                for (std::size_t i : indices(uses(t).size()))
                    if (!own(t)[i]) left.push_back({uses(t)[i].position, t, i});
        std::ranges::sort(
            left, {}, [](const Left &one) { return std::pair(one.position, one.tensor); });
        const std::vector<char> streamed = streams_in_time(left);
        for (std::size_t n : indices(left.size())) {
            const auto &[position, t, i] = left[n];
            // Half of the memory at most: the other half is for what is in use meanwhile.
            if (!streamed[n] && 2 * work_.room[t] <= options_.prefetched_bytes &&
                uses(t)[i].main >= fetch_seconds(t) * (1 - 1e-9))
                keep(t, static_cast<std::int32_t>(i), static_cast<std::int32_t>(i),
                    options_.prefetched_bytes);
        }
    }

    // Which uses, given in their order, may be streamed: what is streamed crosses the fast link
    // never, what is fetched ahead twice. From the last back, a use is streamed if the main link
    // brings it, and what is streamed after it, in `streamed_share` of the time that the jobs that
    // run beside it take.
    std::vector<char> streams_in_time(const std::vector<Left> &left) const {
        std::vector<char> streamed(left.size(), 0);
        if (options_.streamed_share == 0.0) return streamed;
        std::vector<double> idle(work_.jobs + 1, 0.0); // of the main link, before every position
        for (std::size_t job : indices(work_.jobs)) {
            const double *seconds = &work_.compute[job * work_.cores];
            const double busy = *std::min_element(seconds, seconds + work_.cores) /
                static_cast<double>(work_.cores);
            idle[position_[job] + 1] =
                options_.streamed_share * std::max(busy, near_[position_[job]]);
        }
        add_up(idle);
        double late = 0.0; // time of the main link that what is streamed still takes
        std::size_t n = left.size();
        for (std::int64_t at = static_cast<std::int64_t>(work_.jobs) - 1; at >= 0; --at) {
            const double beside = idle[at + 1] -
                idle[std::max<std::int64_t>(0, at + 1 - static_cast<std::int64_t>(work_.cores))];
            for (; n > 0 && left[n - 1].position == at; --n) {
                const double main = uses(left[n - 1].tensor)[left[n - 1].use].main;
                if (late + main > beside) continue;
                late += main;
                streamed[n - 1] = 1;
            }
            late = std::max(0.0, late - (idle[at + 1] - idle[at]));
        }
        return streamed;
    }

    Stays stays() {
        Stays result;
        std::vector<std::int64_t> of_use(use_.size(), -1);
        for (std::size_t t : indices(work_.tensors)) {
            const auto uses = this->uses(t);
            std::int64_t *mine = of_use.data() + first_[t];
            for (std::size_t i : indices(uses.size())) {
                if (!own(t)[i]) continue;
                if (i > 0 && gap(t)[i - 1]) {
                    result.stays.back().last = uses[i].position;
                } else {
                    result.stays.push_back({static_cast<std::int64_t>(t), uses[i].position,
                        uses[i].position, uses[i].position, !produced(t) || i > 0});
                }
                mine[i] = std::ssize(result.stays) - 1;
            }
            if (!machine_.in_place && produced(t))
                result.stays[mine[0]].leaves = work_.output[t] || mine[count_[t] - 1] != mine[0];
        }
        const std::size_t rows = work_.row_job.size();
        result.row_stay.assign(rows, -1);
        for (std::size_t r : indices(rows)) {
            const std::int64_t t = work_.row_tensor[r], at = position_[work_.row_job[r]];
            const auto uses = this->uses(t);
            const auto use = std::ranges::lower_bound(uses, at, {}, &Use::position);
            if (use != uses.end() && use->position == at)
                result.row_stay[r] =
                    of_use[first_[t] + static_cast<std::size_t>(use - uses.begin())];
        }
        return result;
    }

    // The stays that are fetched: indices, in the order in which they are needed.
    static std::vector<std::size_t> fetched(const std::vector<Stay> &stays) {
        std::vector<std::size_t> result;
        for (std::size_t s : indices(stays.size()))
            if (stays[s].fetched) result.push_back(s);
        std::ranges::sort(
            result, {}, [&](std::size_t s) { return std::pair(stays[s].begin, stays[s].tensor); });
        return result;
    }

    // Lets every fetch begin as early as there is room, those that are needed first before the
    // others.
    void fetch_early(std::vector<Stay> &stays, const std::vector<std::size_t> &order) {
        for (std::size_t s : order) {
            Stay &stay = stays[s];
            const std::int64_t room = work_.room[stay.tensor], begin = stay.first,
                               producer = work_.producer[stay.tensor];
            // An earlier stay of the same tensor must be over: it has one place at a time.
            std::int64_t floor = producer < 0 ? 0 : position_[producer] + 1;
            if (s > 0 && stays[s - 1].tensor == stay.tensor)
                floor = held_until(stays[s - 1].last) + 1;
            if (stay.begin >= options_.urgent_positions)
                floor = std::max(floor, options_.urgent_positions);
            if (floor >= begin) continue;
            stay.first = used_.lowest_with(floor, begin, options_.prefetched_bytes - room);
            used_.add(stay.first, begin, room);
        }
    }

    // Notes from when on fetches, which follow one another, would be late if they waited any
    // longer.
    void find_pressing(std::vector<Stay> &stays, const std::vector<std::size_t> &order) const {
        const double lead = options_.fetch_lead * elapsed_.back();
        double latest = elapsed_.back();
        for (auto s = order.rbegin(); s != order.rend(); ++s) {
            Stay &stay = stays[*s];
            latest = std::min(latest, elapsed_[stay.begin] - lead) - fetch_seconds(stay.tensor);
            stay.urgent_from = std::ranges::lower_bound(elapsed_, latest) - elapsed_.begin();
        }
    }

    const Work &work_;
    const Machine &machine_;
    const Options &options_;
    std::vector<std::int64_t> position_;
    Occupancy used_; // bytes at every position
    std::int64_t delay_ =
        options_.release_delay_positions; // positions for which room is held after the last use
    std::vector<double> elapsed_;
    std::vector<double> near_; // seconds of the fast link for what the job at every position reads
                               // and writes of what jobs make
    std::vector<std::size_t> first_,
        count_; // of every tensor: its first use of all, and how many it has
    std::vector<Use> use_;
    std::vector<char> own_,
        gap_; // of every use: whether the tensor is there then, and whether until the next one
    std::vector<double> write_;
    std::vector<char> streamed_;
    std::vector<std::int32_t> kept_to_; // of every tensor: the use up to which it is kept from its
                                        // first one, without a gap
    std::vector<std::pair<std::int64_t, std::int64_t>>
        added_; // positions [begin, over) that `keep` would fill
};

// Whether every tensor that jobs write is written to main memory, by the job or by a copy: it is an
// output, or somebody reads or fetches it there, or nobody reads it at all.
std::vector<std::uint8_t> written_to_main(
    const Work &work, const Machine &machine, const Stays &stays) {
    std::vector<std::uint8_t> to_main(work.tensors, 0), kept(work.tensors, 0);
    for (const Stay &stay : stays.stays)
        if (stay.fetched || stay.leaves) to_main[stay.tensor] = 1;
    if (!machine.in_place) return to_main;
    for (std::size_t r : indices(work.row_job.size()))
        (stays.row_stay[r] < 0 ? to_main : kept)[work.row_tensor[r]] = 1;
    for (std::size_t t : indices(work.tensors)) to_main[t] |= work.output[t] != 0 || !kept[t];
    return to_main;
}

} // namespace

Stays choose_stays(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
    std::span<const double> width, const Options &options) {
    Stays stays = Chooser(work, machine, order, width, options).choose();
    stays.in_main = written_to_main(work, machine, stays);
    return stays;
}

} // namespace loadmaster::joint
