#include "cutting/choice.hpp"

#include <algorithm>
#include <memory>

namespace loadmaster::cutting {

namespace {

// What the pieces of one operator come to, linked to what came before.
struct Step {
    std::shared_ptr<const Step> before;
    std::size_t option;
    std::vector<double> ends;  // of its pieces
    double end;
};

struct State {
    double key = 0.0, end = 0.0, work = 0.0;
    double link = 0.0, main = 0.0;                   // when all that the links have been given is through
    double idle = 0.0;                               // of the near link until then, in which something could have been fetched
    double gate = 0.0;                               // before which there is no room for what the next operator is given
    std::vector<double> free;                        // when each core is
    std::shared_ptr<const Step> last;
    std::vector<std::shared_ptr<const Step>> steps;  // of the operators whose results are still to be read, by slot
};

struct Offer {
    double key;
    std::size_t state, option;
};

class Search {
  public:
    Search(const Network &network, std::size_t width, double patience) : network_(network), width_(width), patience_(patience) {
        find_slots();
        find_gates();
    }

    Choice run() {
        std::vector<State> states{begin()}, next;
        std::vector<Offer> offers;
        for (std::size_t op = 0; op < network_.operators; ++op) {
            offers.clear();
            for (std::size_t s = 0; s < states.size(); ++s) {
                states[s].gate = room_from(states[s], op);
                for (std::int64_t option = network_.option_first[op]; option < network_.option_first[op + 1]; ++option)
                    offers.push_back({place(states[s], op, static_cast<std::size_t>(option)), s, static_cast<std::size_t>(option)});
            }
            std::sort(offers.begin(), offers.end(), [](const Offer &a, const Offer &b) {
                if (a.key != b.key) return a.key < b.key;
                return a.state != b.state ? a.state < b.state : a.option < b.option;
            });
            next.clear();
            for (const Offer &offer : offers) {
                if (next.size() == width_) break;
                // What comes to the same is kept once.
                if (!next.empty() && next.back().key == offer.key) continue;
                next.push_back(follow(states[offer.state], op, offer.option));
            }
            states.swap(next);
        }
        const State &best = *std::min_element(states.begin(), states.end(), [](const State &a, const State &b) { return a.end < b.end; });
        Choice choice{std::vector<std::int64_t>(network_.operators), best.end};
        const Step *step = best.last.get();
        for (std::size_t op = network_.operators; op-- > 0; step = step->before.get())
            choice.option[op] = static_cast<std::int64_t>(step->option) - network_.option_first[op];
        return choice;
    }

    State run_from(State state, std::size_t first, std::span<const std::int64_t> option) {
        for (std::size_t op = first; op < network_.operators; ++op) state = step(state, op, option[op]);
        return state;
    }

    double makespan(std::span<const std::int64_t> option) { return run_from(begin(), 0, option).end; }

    Choice improve(std::span<const std::int64_t> given, std::int64_t most) {
        std::vector<std::int64_t> option(given.begin(), given.end());
        State best = run_from(begin(), 0, option);
        const auto earlier = [](const State &a, const State &b) { return a.end != b.end ? a.end < b.end : a.work < b.work; };
        for (bool improves = true; improves && most > 0;) {
            improves = false;
            State before = begin();
            for (std::size_t op = 0; op < network_.operators && most > 0; ++op) {
                const std::int64_t options = network_.option_first[op + 1] - network_.option_first[op], now = option[op];
                std::int64_t chosen = now;
                for (std::int64_t other = 0; other < options; ++other) {
                    if (other == now) continue;
                    option[op] = other;
                    State state = run_from(before, op, option);
                    most -= static_cast<std::int64_t>(network_.operators - op);
                    if (earlier(state, best)) best = std::move(state), chosen = other, improves = true;
                }
                option[op] = chosen;
                before = step(before, op, chosen);
            }
        }
        return {std::move(option), best.end};
    }

  private:
    State step(State &state, std::size_t op, std::int64_t option) {
        state.gate = room_from(state, op);
        return follow(state, op, static_cast<std::size_t>(network_.option_first[op] + option));
    }

    State begin() const {
        State state;
        state.free.assign(network_.cores, 0.0);
        state.steps.resize(slots_);
        return state;
    }

    // Operators whose results are not read any more hand their slot on.
    void find_slots() {
        const std::size_t count = network_.operators;
        std::vector<std::size_t> last(count);
        for (std::size_t op = 0; op < count; ++op) {
            last[op] = op;
            for (std::int64_t i = network_.source_first[op]; i < network_.source_first[op + 1]; ++i) last[network_.source[i]] = op;
        }
        std::vector<std::vector<std::size_t>> over(count);
        std::vector<std::size_t> idle;
        slot_.resize(count);
        for (std::size_t op = 0; op < count; ++op) {
            if (idle.empty()) idle.push_back(slots_++);
            slot_[op] = idle.back();
            idle.pop_back();
            over[last[op]].push_back(slot_[op]);
            idle.insert(idle.end(), over[op].begin(), over[op].end());
        }
    }

    // The operator that must have ended before there is room for what each is given; itself where there is room from the start.
    void find_gates() {
        gate_.resize(network_.operators);
        std::int64_t all = 0, used = 0;
        std::size_t freed = 0;
        for (std::size_t op = 0; op < network_.operators; ++op) {
            all += network_.given[op];
            while (freed < op && used < all - network_.room[freed]) used += network_.given[freed++];
            gate_[op] = freed > 0 ? freed - 1 : op;
        }
    }

    double room_from(const State &state, std::size_t op) const {
        if (gate_[op] == op || network_.given[op] == 0) return 0.0;
        const Step *step = state.last.get();
        for (std::size_t at = op - 1; at > gate_[op]; --at) step = step->before.get();
        return step->end;
    }

    // Where the pieces of an option end: `free_`, `ends_`, `link_`, `main_`, `end_` and `work_`; how good that is.
    double place(const State &state, std::size_t op, std::size_t option) {
        free_ = state.free;
        link_ = state.link, idle_ = state.idle, main_ = state.main, end_ = state.end, work_ = state.work;
        ends_.clear();
        double given = 0.0;
        for (std::int64_t piece = network_.piece_first[option]; piece < network_.piece_first[option + 1]; ++piece) {
            if (network_.fetch[piece] > 0.0) given = fetched(state.gate, network_.fetch[piece]);
            const double ready = std::max(given, read_by(state, op, static_cast<std::size_t>(piece)));
            const double *alone = &network_.alone[static_cast<std::size_t>(piece) * network_.cores];
            std::size_t core = 0;
            for (std::size_t c = 1; c < network_.cores; ++c)
                if (std::max(free_[c], ready) + alone[c] < std::max(free_[core], ready) + alone[core]) core = c;
            const double start = std::max(free_[core], ready);
            idle_ += network_.copied * std::max(0.0, start - link_);
            link_ = std::max(link_, start) + network_.link[piece];
            if (network_.stream[piece] > 0.0) main_ = std::max(main_, start) + network_.stream[piece];
            const double end = std::max({start + alone[core], link_, network_.stream[piece] > 0.0 ? main_ : 0.0});
            free_[core] = end;
            work_ += end - start;
            ends_.push_back(end);
            end_ = std::max(end_, end);
        }
        double mean = 0.0;
        for (double free : free_) mean += free;
        return patience_ * end_ + (1.0 - patience_) * (mean + 0.1 * work_) / static_cast<double>(network_.cores);
    }

    // When what takes so long on the main link is in the near memory, where there is room for it from `gate` on.
    double fetched(double gate, double seconds) {
        main_ = std::max(main_, gate) + seconds;
        const double copied = seconds * network_.copied, before = std::min(idle_, copied);
        idle_ -= before;
        link_ += copied - before;
        return main_;
    }

    double read_by(const State &state, std::size_t op, std::size_t piece) const {
        double ready = 0.0;
        const std::int64_t first = network_.source_first[op];
        for (std::int64_t i = first; i < network_.source_first[op + 1]; ++i) {
            const Step &step = *state.steps[slot_[network_.source[i]]];
            const std::int64_t *needed = &network_.needed[static_cast<std::size_t>(network_.need_first[piece] + i - first) * 2 * network_.rank];
            const std::int64_t *made = &network_.made[static_cast<std::size_t>(network_.piece_first[step.option]) * 2 * network_.rank];
            for (std::size_t p = 0; p < step.ends.size(); ++p)
                if (step.ends[p] > ready && overlap(needed, made + p * 2 * network_.rank)) ready = step.ends[p];
        }
        return ready;
    }

    bool overlap(const std::int64_t *one, const std::int64_t *other) const {
        for (std::size_t d = 0; d < 2 * network_.rank; d += 2)
            if (std::max(one[d], other[d]) >= std::min(one[d + 1], other[d + 1])) return false;
        return true;
    }

    State follow(const State &state, std::size_t op, std::size_t option) {
        State next;
        next.key = place(state, op, option);
        next.link = link_, next.idle = idle_, next.main = main_, next.end = end_, next.work = work_;
        next.free = free_;
        next.last = std::make_shared<const Step>(Step{state.last, option, ends_, *std::max_element(ends_.begin(), ends_.end())});
        next.steps = state.steps;
        next.steps[slot_[op]] = next.last;
        return next;
    }

    const Network &network_;
    std::size_t width_, slots_ = 0;
    double patience_;
    std::vector<std::size_t> slot_, gate_;
    std::vector<double> free_, ends_;
    double link_ = 0.0, idle_ = 0.0, main_ = 0.0, end_ = 0.0, work_ = 0.0;
};

}  // namespace

Choice choose(const Network &network, std::size_t width, double patience) { return Search(network, width, patience).run(); }

Choice improve(const Network &network, std::span<const std::int64_t> option, std::int64_t most) { return Search(network, 1, 1.0).improve(option, most); }

double makespan(const Network &network, std::span<const std::int64_t> option) { return Search(network, 1, 1.0).makespan(option); }

}  // namespace loadmaster::cutting
