// Python binding of the choice of cuts.
#include "bindings/task_graph.hpp"
#include "cutting/improve.hpp"
#include "cutting/rehearsal.hpp"

#include <algorithm>
#include <nanobind/stl/pair.h>

namespace nb = nanobind;
using namespace loadmaster;

namespace {

using Ints = Array<std::int64_t, 1>;
using Boxes = Array<std::int64_t, 2>;
using Floats = Array<double, 1>;

void require_ends(const Ints &first, std::size_t count, std::size_t last, const char *what) {
    require(first.size() == count + 1 && first.data()[0] == 0 &&
            first.data()[count] == static_cast<std::int64_t>(last),
        what);
    require(std::is_sorted(first.data(), first.data() + first.size()), what);
}

// A network's operators and the ways to cut them, checked once. It keeps the arrays that it views
// alive.
class CutProblem {
  public:
    CutProblem(Ints option_first, Ints piece_first, Ints need_first, Array<double, 2> alone,
        Floats link, Boxes made, Boxes needed, Ints source_first, Ints source, Floats fetch,
        Floats stream, double copied, Ints given, Ints room, std::int64_t mini_batches)
        : option_first_(option_first), piece_first_(piece_first), need_first_(need_first),
          source_first_(source_first), source_(source), given_(given), room_(room), alone_(alone),
          link_(link), fetch_(fetch), stream_(stream), made_(made), needed_(needed) {
        const std::size_t operators = given.size(), pieces = alone.shape(0), cores = alone.shape(1);
        require(cores >= 1 && fetch.size() == pieces && stream.size() == pieces &&
                link.size() == pieces && made.shape(0) == pieces,
            "cuts: arrays of different lengths");
        require(made.shape(1) == needed.shape(1) && made.shape(1) % 2 == 0,
            "cuts: boxes are pairs, of one rank");
        require(piece_first.size() >= 1, "piece_first: must end with the number of pieces");
        require_ends(option_first, operators, piece_first.size() - 1,
            "option_first: must rise to the number of options");
        require_ends(piece_first, piece_first.size() - 1, pieces,
            "piece_first: must rise to the number of pieces");
        require_ends(
            need_first, pieces, needed.shape(0), "need_first: must rise to the number of needs");
        require_ends(source_first, operators, source.size(),
            "source_first: must rise to the number of sources");
        for (std::size_t op = 0; op < operators; ++op) {
            const std::int64_t sources = source_first.data()[op + 1] - source_first.data()[op];
            require(option_first.data()[op + 1] > option_first.data()[op],
                "option_first: every operator needs an option");
            for (std::int64_t i = source_first.data()[op]; i < source_first.data()[op + 1]; ++i)
                require(source.data()[i] >= 0 && source.data()[i] < static_cast<std::int64_t>(op),
                    "source: must come before its reader");
            for (std::int64_t o = option_first.data()[op]; o < option_first.data()[op + 1]; ++o) {
                require(piece_first.data()[o + 1] > piece_first.data()[o],
                    "piece_first: every option needs a piece");
                for (std::int64_t p = piece_first.data()[o]; p < piece_first.data()[o + 1]; ++p)
                    require(need_first.data()[p + 1] - need_first.data()[p] == sources,
                        "need_first: every piece needs a box of every source");
            }
        }
        require_finite(view(alone), "alone: must be finite and not negative");
        require_finite(view(link), "link: must be finite and not negative");
        require_finite(view(fetch), "fetch: must be finite and not negative");
        require_finite(view(stream), "stream: must be finite and not negative");
        require_below(view(given), std::int64_t{1} << 48, "given: must not be negative");
        require(std::isfinite(copied) && copied >= 0.0, "copied: must be finite and not negative");
        require(room.size() == operators, "room: needs one for every operator");
        require_below(view(room), std::int64_t{1} << 61, "room: must not be negative");
        require(mini_batches >= 1, "mini_batches: must be at least 1");
        network_ = {operators, cores, made.shape(1) / 2, static_cast<std::size_t>(mini_batches),
            view(option_first_), view(piece_first_), view(need_first_), view(alone_), view(link_),
            view(made_), view(needed_), view(source_first_), view(source_), view(fetch_),
            view(stream_), copied, view(given_), view(room_)};
    }

    template <auto Better>
    std::pair<nb::object, double> better(const Ints &option, std::int64_t most) const {
        require_options(option);
        cutting::Choice choice;
        {
            nb::gil_scoped_release release;
            choice = Better(network_, view(option), most);
        }
        const std::size_t operators = choice.option.size();
        return {to_numpy(std::move(choice.option), {operators}), choice.makespan};
    }

    double makespan(const Ints &option) const {
        require_options(option);
        nb::gil_scoped_release release;
        return cutting::Rehearsal(network_).run(view(option)).end;
    }

  private:
    void require_options(const Ints &option) const {
        require(option.size() == network_.operators, "option: needs one for every operator");
        for (std::size_t op = 0; op < network_.operators; ++op)
            require(option.data()[op] >= 0 &&
                    option.data()[op] < network_.option_first[op + 1] - network_.option_first[op],
                "option: there is no such one");
    }

    Ints option_first_, piece_first_, need_first_, source_first_, source_, given_, room_;
    Array<double, 2> alone_;
    Floats link_, fetch_, stream_;
    Boxes made_, needed_;
    cutting::Network network_;
};

} // namespace

void bind_cutting(nb::module_ &module) {
    nb::class_<CutProblem>(module, "CutProblem")
        .def(nb::init<Ints, Ints, Ints, Array<double, 2>, Floats, Boxes, Boxes, Ints, Ints, Floats,
                 Floats, double, Ints, Ints, std::int64_t>(),
            nb::kw_only(), nb::arg("option_first"), nb::arg("piece_first"), nb::arg("need_first"),
            nb::arg("alone"), nb::arg("link"), nb::arg("made"), nb::arg("needed"),
            nb::arg("source_first"), nb::arg("source"), nb::arg("fetch"), nb::arg("stream"),
            nb::arg("copied"), nb::arg("given"), nb::arg("room"), nb::arg("mini_batches"))
        .def("improve", &CutProblem::better<cutting::improve>, nb::arg("option"), nb::arg("most"))
        .def("explore", &CutProblem::better<cutting::explore>, nb::arg("option"), nb::arg("most"))
        .def("makespan", &CutProblem::makespan, nb::arg("option"));
}
