// Checks for tests without a framework: a failed one says where, and the program ends with an error
// once all tests ran.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace checks {

struct Test {
    const char *name;
    std::function<void()> run;
};

inline std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

inline int &failures() {
    static int count = 0;
    return count;
}

struct Registered {
    Registered(const char *name, std::function<void()> run) {
        tests().push_back({name, std::move(run)});
    }
};

inline void fail(const char *file, int line, const std::string &what) {
    ++failures();
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

// Runs every test; the exit status of `main`.
inline int run_all() {
    for (const Test &test : tests()) {
        const int before = failures();
        try {
            test.run();
        } catch (const std::exception &error) {
            fail(test.name, 0, error.what());
        }
        std::printf("%s %s\n", failures() == before ? "ok    " : "FAILED", test.name);
    }
    std::printf("%zu tests, %d failed checks\n", tests().size(), failures());
    return failures() == 0 && !tests().empty() ? 0 : 1;
}

} // namespace checks

#define CHECKS_JOIN_(a, b) a##b
#define CHECKS_JOIN(a, b) CHECKS_JOIN_(a, b)
#define TEST(name)                                                                                 \
    static void CHECKS_JOIN(test_, __LINE__)();                                                    \
    static const checks::Registered CHECKS_JOIN(registered_, __LINE__)(                            \
        name, CHECKS_JOIN(test_, __LINE__));                                                       \
    static void CHECKS_JOIN(test_, __LINE__)()
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) checks::fail(__FILE__, __LINE__, #condition);                            \
    } while (false)
