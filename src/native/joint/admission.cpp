#include "common/index_set.hpp"
#include "common/limits.hpp"
#include "joint/joint.hpp"
#include "joint/times.hpp"
#include "simulation/event_engine.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <list>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace loadmaster::joint {

namespace {

// Jobs ready before their turn that are looked at when a core is idle.
constexpr std::size_t kEarlyLooks = 16;

class Simulation {
  public:
    Simulation(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
        const Stays &stays, const Options &options)
        : work_(work), machine_(machine), order_(order), stays_(stays), options_(options),
          profile_(stays.used), times_(job_times(work, machine, stays)), events_(kLinks, kLinks),
          ready_(work.jobs), early_(work.jobs), limit_(options.filled_bytes) {
        // Operands that jobs have to have there may take more than is to be filled.
        if (!machine.in_place) limit_ = std::max(limit_, std::ranges::max(profile_));
        number_copies();
        list_users();
        position_.resize(work.jobs);
        for (std::size_t at : indices(order.size())) position_[order[at]] = at;
        for (std::size_t job : indices(work.jobs))
            if (waiting_[job] == 0) early_.insert(position_[job]);
    }

    Admission run() {
        const std::size_t tasks = work_.jobs + copies_.size();
        result_.core.assign(work_.jobs, -1);
        result_.start.assign(tasks, -1);
        result_.end.assign(tasks, -1);
        std::size_t done = 0;
        events_.run([&] { start(); }, [&] { return next_arrival(); }, [](std::int64_t) {},
            [&](const Running &run) {
                finish(run.task, run.resource);
                ++done;
            });
        if (done == tasks) result_.makespan = now();
        list_copies();
        return std::move(result_);
    }

  private:
    // Everything that may start now: in turn, then before its turn, then copies of low priority.
    void start() {
        while (!arrivals_.empty() && arrivals_.back() <= now()) arrivals_.pop_back();
        for (; !later_.empty() && later_.begin()->first <= now(); later_.erase(later_.begin()))
            ready_.insert(position_[later_.begin()->second]);
        admit_in_turn();
        start_copy(false);
        start_jobs();
        if (admit_early()) start_jobs();
        if (std::isfinite(options_.fetch_lead)) start_copy(true);
    }

    std::int64_t now() const { return events_.now(); }

    // When the next job is released, or the next tensor comes.
    std::int64_t next_arrival() const {
        return std::min(later_.empty() ? kNever : later_.begin()->first,
            arrivals_.empty() ? kNever : arrivals_.back());
    }

    // Fetches in the order in which they are admitted: by position, then by first use; after them
    // what goes to main memory. Times as
    // `_copy_times` in loadmaster/planning/problem.py; tests/test_twins.py holds the two together.
    void number_copies() {
        for (std::size_t s : indices(stays_.stays.size()))
            if (stays_.stays[s].fetched) copies_.push_back(s);
        std::ranges::sort(copies_, {}, [&](std::int64_t s) {
            return std::tuple(stays_.stays[s].first, stays_.stays[s].begin, s);
        });
        fetches_ = copies_.size();
        for (std::int64_t s : copies_)
            if (const std::int64_t time = work_.available[stays_.stays[s].tensor]; time > 0)
                arrivals_.push_back(time);
        std::ranges::sort(arrivals_, std::greater<>());
        for (std::size_t s : indices(stays_.stays.size()))
            if (stays_.stays[s].leaves) copies_.push_back(s);
        for (std::size_t copy : indices(copies_.size())) {
            const std::size_t into = copy < fetches_ ? kFast : kMain;
            const double main = (into == kFast ? machine_.read : machine_.write)[kMain],
                         fast = (into == kFast ? machine_.write : machine_.read)[kFast];
            const double bytes =
                static_cast<double>(work_.bytes[stays_.stays[copies_[copy]].tensor]);
            const std::int64_t duration =
                whole(bytes / std::min({machine_.engine[into], main, fast}));
            const double seconds = static_cast<double>(duration) / kPicoseconds;
            copy_duration_.push_back(duration);
            copy_demand_.push_back(bytes / main / seconds);
            copy_demand_.push_back(bytes / fast / seconds);
        }
    }

    // The copies in the order in which they were made.
    void list_copies() {
        const std::size_t count = copies_.size();
        std::vector<std::size_t> made(count);
        std::iota(made.begin(), made.end(), std::size_t{0});
        const std::vector<std::int64_t> start(
            result_.start.begin() + work_.jobs, result_.start.end());
        const std::vector<std::int64_t> end(result_.end.begin() + work_.jobs, result_.end.end());
        std::ranges::stable_sort(made, {}, [&](std::size_t a) { return start[a]; });
        for (std::size_t at : indices(count)) {
            result_.copies.push_back(copies_[made[at]]);
            result_.outward.push_back(made[at] >= fetches_);
            result_.start[work_.jobs + at] = start[made[at]];
            result_.end[work_.jobs + at] = end[made[at]];
        }
    }

    // Who uses each stay, and what each job waits for.
    void list_users() {
        const std::size_t stays = stays_.stays.size();
        users_.assign(stays, 0);
        waiting_ = work_.successors.predecessor_counts();
        for (std::size_t copy = fetches_; copy < copies_.size(); ++copy) {
            ++users_[copies_[copy]];
            way_out_.emplace(copies_[copy], copy);
        }
        left_.assign(work_.tensors, 0);
        list_used();
        for (std::size_t job : indices(work_.jobs))
            for (std::int64_t s : used(job)) {
                ++users_[s];
                waiting_[job] += stays_.stays[s].fetched;
            }
        list_readers();
        admitted_.assign(work_.jobs, 0);
        busy_.assign(work_.cores + 1, 0);
        free_at_.resize(work_.cores);
    }

    // The stays that each job uses, each once.
    void list_used() {
        used_first_.reserve(work_.jobs + 1);
        for (std::size_t job = 0, r = 0; job < work_.jobs; ++job) {
            const auto first = static_cast<std::ptrdiff_t>(used_.size());
            used_first_.push_back(used_.size());
            for (; r < work_.row_job.size() && work_.row_job[r] == static_cast<std::int64_t>(job);
                ++r) {
                const std::int64_t s = stays_.row_stay[r];
                if (s >= 0 && std::find(used_.begin() + first, used_.end(), s) == used_.end())
                    used_.push_back(s);
            }
        }
        used_first_.push_back(used_.size());
    }

    std::span<const std::int64_t> used(std::size_t job) const {
        return {used_.data() + used_first_[job], used_.data() + used_first_[job + 1]};
    }

    // The jobs that read what is fetched.
    void list_readers() {
        readers_first_.assign(stays_.stays.size() + 1, 0);
        for (std::int64_t s : used_) readers_first_[s + 1] += stays_.stays[s].fetched;
        add_up(readers_first_);
        readers_.resize(readers_first_.back());
        std::vector<std::size_t> next = readers_first_;
        for (std::size_t job : indices(work_.jobs))
            for (std::int64_t s : used(job))
                if (stays_.stays[s].fetched) readers_[next[s]++] = job;
    }

    // Jobs and fetches take their room in turn: the fetches of a position before its job.
    void admit_in_turn() {
        while (next_ < order_.size()) {
            if (held_back(next_)) return;
            while (next_copy_ < fetches_ &&
                stays_.stays[copies_[next_copy_]].first <= static_cast<std::int64_t>(next_)) {
                const std::int64_t room = work_.room[stays_.stays[copies_[next_copy_]].tensor];
                if (reserved_ + room > limit_) return;
                reserved_ += room;
                pending_.push_back(next_copy_++);
            }
            const std::int64_t job = order_[next_];
            if (!admitted_[job]) {
                const std::int64_t room = room_of_results(job);
                if (reserved_ + room > limit_) return;
                admit(job, room);
            }
            ++next_;
        }
    }

    // Whether a position has to wait until all that come before `urgent_positions` have ended.
    bool held_back(std::int64_t position) const {
        return position >= options_.urgent_positions && jobs_done_ < options_.urgent_positions;
    }

    std::int64_t room_of_results(std::int64_t job) const {
        std::int64_t room = 0;
        for (std::int64_t s : used(job))
            if (!stays_.stays[s].fetched && work_.producer[stays_.stays[s].tensor] == job)
                room += work_.room[stays_.stays[s].tensor];
        return room;
    }

    void admit(std::int64_t job, std::int64_t room) {
        reserved_ += room;
        admitted_[job] = 1;
        if (waiting_[job] == 0) {
            make_ready(job);
            early_.erase(position_[job]);
        }
    }

    // Let ready jobs go before their turn to cores that would be idle; whether any did.
    bool admit_early() {
        std::size_t idle =
            static_cast<std::size_t>(std::count(busy_.begin(), busy_.begin() + work_.cores, 0));
        bool any = false;
        std::size_t looks = kEarlyLooks;
        for (std::size_t at = early_.from(0); idle > 0 && looks > 0 && at != IndexSet::none;
            --looks, at = early_.from(at + 1)) {
            const std::int64_t position = static_cast<std::int64_t>(at), job = order_[at];
            if (work_.release[job] > now() || held_back(position)) continue;
            const std::int64_t room = room_of_results(job);
            if (reserved_ + room > limit_) continue;
            std::int64_t *first = &profile_[next_], *last = &profile_[position];
            if (room > 0 &&
                std::any_of(first, last, [&](std::int64_t used) { return used + room > limit_; }))
                continue;
            std::for_each(first, last, [&](std::int64_t &used) { used += room; });
            admit(job, room);
            --idle;
            any = true;
        }
        return any;
    }

    // What goes to main memory first, as it makes room; else the first fetch of what is there.
    void start_copy(bool low_priority) {
        if (busy_[work_.cores]) return;
        if (!leaving_.empty()) {
            start_copy(leaving_.front());
            leaving_.pop_front();
            return;
        }
        for (auto it = pending_.begin(); it != pending_.end(); ++it) {
            const std::int64_t s = copies_[*it], t = stays_.stays[s].tensor;
            // A tensor has one place at a time: its earlier stay must be over.
            if (s > 0 && stays_.stays[s - 1].tensor == t && users_[s - 1] > 0) return;
            if (!in_main(t)) continue;
            if (stays_.stays[s].urgent_from > begun() && (!low_priority || in_the_way(*it))) return;
            start_copy(*it);
            pending_.erase(it);
            return;
        }
    }

    // How many positions' jobs have all begun.
    std::int64_t begun() {
        while (begun_ < order_.size() && result_.start[order_[begun_]] >= 0) ++begun_;
        return static_cast<std::int64_t>(begun_);
    }

    // Whether a link that a copy needs would be too full for it and the jobs that run.
    bool in_the_way(std::size_t copy) const {
        for (std::size_t link : indices(kLinks)) {
            double load = copy_demand_[copy * kLinks + link];
            for (const Running &run : events_.running()) load += run.demand[link];
            if (load > 1.0 + 1e-9 && load > copy_demand_[copy * kLinks + link]) return true;
        }
        return false;
    }

    void start_copy(std::size_t copy) {
        const std::size_t task = work_.jobs + copy;
        busy_[work_.cores] = 1;
        result_.start[task] = now();
        events_.add(static_cast<std::int64_t>(task), static_cast<std::int32_t>(work_.cores),
            copy_duration_[copy], &copy_demand_[copy * kLinks]);
    }

    // Whether a tensor has come, or once it is made is in main memory too.
    bool in_main(std::int64_t tensor) const {
        const std::int64_t producer = work_.producer[tensor];
        return producer < 0 ? work_.available[tensor] <= now()
                            : (machine_.in_place ? result_.end[producer] >= 0 : left_[tensor] != 0);
    }

    void start_jobs() {
        std::ranges::fill(free_at_, static_cast<double>(now()));
        std::ranges::fill(load_, 0.0);
        std::size_t idle = work_.cores;
        for (const Running &run : events_.running()) {
            for (std::size_t link : indices(kLinks)) load_[link] += run.demand[link];
            if (run.resource < static_cast<std::int32_t>(work_.cores)) {
                free_at_[run.resource] += run.remaining / run.speed;
                --idle;
            }
        }
        // As in `dispatch` (simulation/dispatch.cpp; tests/test_twins.py holds the two together): a
        // job that would rather wait for a busy core books it.
        bool started = idle < work_.cores;
        std::size_t at = ready_.from(0);
        for (std::size_t looks = 4 * work_.cores;
            (looks > 0 || !started) && idle > 0 && at != IndexSet::none;
            looks -= looks > 0, at = ready_.from(at + 1)) {
            const std::size_t job = static_cast<std::size_t>(order_[at]);
            const std::int64_t *duration = &times_.duration[job * work_.cores];
            const double *penalty = &work_.energy_penalty[job * work_.cores];
            std::size_t core = 0;
            const double weight = 1.0 + options_.core_wait_ratio;
            double least = kInfinite;
            for (std::size_t c : indices(work_.cores)) {
                const double price =
                    options_.core_prices.empty() ? weight : weight * options_.core_prices[c];
                const double value = free_at_[c] + price * static_cast<double>(duration[c]) +
                    options_.energy_weight * penalty[c];
                if (value < least) least = value, core = c;
            }
            const double *demand = &times_.demand[(job * work_.cores + core) * kLinks];
            if (!busy_[core] && (crowded(demand) || waits_for_release(at, now() + duration[core])))
                continue;
            free_at_[core] += static_cast<double>(duration[core]);
            if (busy_[core]) continue;
            ready_.erase(at);
            busy_[core] = 1;
            --idle;
            started = true;
            result_.core[job] = static_cast<std::int32_t>(core);
            result_.start[job] = now();
            for (std::size_t link : indices(kLinks)) load_[link] += demand[link];
            events_.add(static_cast<std::int64_t>(job), static_cast<std::int32_t>(core),
                duration[core], demand);
        }
    }

    // Whether a job would mostly wait for a link that others fill already.
    bool crowded(const double *demand) const {
        for (std::size_t link : indices(kLinks))
            if (demand[link] > 0.5 && load_[link] + demand[link] > options_.link_load_limit &&
                load_[link] > 0.0)
                return true;
        return false;
    }

    // Whether a job that would end at `end` leaves its core to those that are released before.
    bool waits_for_release(std::size_t position, std::int64_t end) const {
        const auto is_urgent = [&](std::int64_t job) {
            return position_[job] < static_cast<std::int64_t>(position);
        };
        return options_.wait_for_releases && delays_release(free_at_, end, later_, is_urgent);
    }

    void enable(std::int64_t job) {
        if (--waiting_[job] > 0) return;
        if (admitted_[job])
            make_ready(job);
        else
            early_.insert(position_[job]);
    }

    // What a job waits for is there; it may still have to wait for its own time.
    void make_ready(std::int64_t job) {
        if (work_.release[job] <= now())
            ready_.insert(position_[job]);
        else
            later_.emplace(work_.release[job], job);
    }

    void finish(std::size_t task, std::int32_t resource) {
        busy_[resource] = 0;
        result_.end[task] = now();
        if (task >= work_.jobs) {
            const std::int64_t s = copies_[task - work_.jobs];
            if (task - work_.jobs < fetches_) {
                for (std::size_t i : row_of(readers_first_, s)) enable(readers_[i]);
                return;
            }
            left_[stays_.stays[s].tensor] = 1;
            release(s);
            return;
        }
        ++jobs_done_;
        for (std::int64_t i : row_of(work_.successors.first, task))
            enable(work_.successors.next[i]);
        for (std::int64_t s : used(task)) {
            if (const auto out = way_out_.find(s); out != way_out_.end() &&
                work_.producer[stays_.stays[s].tensor] == static_cast<std::int64_t>(task))
                leaving_.push_back(out->second);
            release(s);
        }
    }

    // One user of a stay has ended.
    void release(std::int64_t stay) {
        if (--users_[stay] == 0) reserved_ -= work_.room[stays_.stays[stay].tensor];
    }

    const Work &work_;
    const Machine &machine_;
    std::span<const std::int64_t> order_;
    const Stays &stays_;
    const Options &options_;
    std::vector<std::int64_t> profile_; // bytes taken at every position, those of jobs that went
                                        // before their turn included
    Times times_;
    EventEngine events_;
    Admission result_;
    std::vector<std::int64_t> copy_duration_, users_, waiting_;
    std::vector<double> copy_demand_, free_at_, load_ = std::vector<double>(kLinks);
    std::vector<std::size_t> used_first_, readers_first_; // of every job and stay: its first of
    std::vector<std::int64_t> used_, readers_;
    std::vector<char> admitted_, busy_;
    IndexSet ready_,
        early_; // positions of jobs that could start, and of such whose turn has not come
    Releases later_;
    std::vector<std::int64_t> position_;
    std::vector<std::int64_t> copies_; // stays that are fetched, `fetches_` of them, then those
                                       // that are copied to main memory
    std::size_t fetches_ = 0, next_ = 0, next_copy_ = 0, begun_ = 0;
    std::vector<std::int64_t>
        arrivals_; // times at which something comes that is fetched, the next one last
    std::list<std::size_t> pending_;  // fetches that have their room, by `copies_`
    std::deque<std::size_t> leaving_; // what is made and not yet on its way to main memory
    std::unordered_map<std::int64_t, std::size_t> way_out_; // of a stay, the copy to main memory
    std::vector<char> left_; // tensors that were copied to main memory
    std::int64_t limit_;     // bytes that may be full
    std::int64_t reserved_ = 0, jobs_done_ = 0;
};

} // namespace

Admission admit(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
    const Stays &stays, const Options &options) {
    if (!stays.fit)
        return {std::vector<std::int32_t>(work.jobs, -1), std::vector<std::int64_t>(work.jobs, -1),
            std::vector<std::int64_t>(work.jobs, -1), {}, {}, -1};
    return Simulation(work, machine, order, stays, options).run();
}

} // namespace loadmaster::joint
