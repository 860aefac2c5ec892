// Settings for tests: noise and drift of the device's virtual clock, the order in which streams execute, and
// calls that fail. Set by `softwareGpuSet("noise=0.01 drift=0.02")`, or for a whole process by
// ATTUNE_SOFTWARE_GPU_SET; an empty string resets everything. Its times are no measurements.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string>

namespace virtual_clock {

struct Settings {
    std::map<std::string, double> numbers;
    struct Failure {
        CUresult code;
        int64_t after;  // number of calls that succeed first
        bool sticky;    // the context is lost
    };
    std::map<std::string, Failure> failures;  // by function name
    std::mt19937_64 random, order;
    double noise = 1;  // factor of the current sample

    double number(const char* name, double otherwise) const {
        const auto known = numbers.find(name);
        return known == numbers.end() ? otherwise : known->second;
    }
};

inline std::mutex& lock = *new std::mutex;
inline Settings& settings = *new Settings;
inline std::atomic<bool> fails{false}, orders{false};

// The CUDA version that the driver reports: 12020 for 12.2.
inline int driver_version(int otherwise) {
    std::lock_guard<std::mutex> hold(lock);
    return static_cast<int>(settings.number("driver_version", otherwise));
}

// GPU memory used by other processes.
inline uint64_t foreign_bytes() {
    std::lock_guard<std::mutex> hold(lock);
    return static_cast<uint64_t>(settings.number("foreign_bytes", 0));
}

// Whether queued work is executed in a random order, of those that CUDA allows.
inline bool shuffles() { return orders; }
inline size_t draw(size_t count) {
    std::lock_guard<std::mutex> hold(lock);
    return std::uniform_int_distribution<size_t>(0, count - 1)(settings.order);
}

// Returns 0, or the number of the first word that is not understood, counted from 1.
inline int set(const std::string& text) {
    std::lock_guard<std::mutex> hold(lock);
    Settings made;
    std::istringstream words(text);
    int number = 0;
    for (std::string word; words >> word;) {
        number++;
        const size_t equals = word.find('=');
        if (equals == std::string::npos) return number;
        const std::string name = word.substr(0, equals);
        const char* value = word.c_str() + equals + 1;
        char* end = nullptr;
        const double given = std::strtod(value, &end);
        if (end == value || !std::isfinite(given)) return number;
        if (name.substr(0, 2) != "cu") {
            static const char* const KNOWN[] = {"noise", "drift", "drift_period_s", "placement", "cta_us", "clock_share", "seed", "order", "driver_version", "foreign_bytes"};
            bool known = false;
            for (const char* each : KNOWN) known |= name == each;
            if (!known || *end) return number;
            made.numbers[name] = given;
            continue;
        }
        // cuGraphInstantiateWithFlags=2; …=2@5: from the sixth call on; …=719!: the context is lost
        Settings::Failure failure{static_cast<CUresult>(given), 0, false};
        if (*end == '!') failure.sticky = true, end++;
        if (*end == '@') failure.after = std::strtoll(end + 1, &end, 10);
        if (*end) return number;
        made.failures[name] = failure;
    }
    made.random.seed(static_cast<uint64_t>(made.number("seed", 0)));
    made.order.seed(static_cast<uint64_t>(made.number("order", 0)));
    orders = made.numbers.count("order") > 0;
    fails = !made.failures.empty();
    settings = std::move(made);
    return 0;
}

inline const bool from_environment = [] {
    const char* given = std::getenv("ATTUNE_SOFTWARE_GPU_SET");
    return given && set(given) == 0;
}();

// The error that this call of `function` has to return.
inline CUresult planted(const char* function, CUresult& sticky) {
    if (!fails) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> hold(lock);
    std::string name = function;  // without its version suffix, as in cuMemAlloc_v2
    if (const size_t at = name.rfind("_v"); at != std::string::npos) name.resize(at);
    const auto known = settings.failures.find(name);
    if (known == settings.failures.end() || known->second.after-- > 0) return CUDA_SUCCESS;
    if (known->second.sticky) sticky = known->second.code;
    return known->second.code;
}

// Begins a new sample, when an event is recorded.
inline void begin_sample() {
    std::lock_guard<std::mutex> hold(lock);
    std::normal_distribution<double> normal;
    settings.noise = std::exp(settings.number("noise", 0) * normal(settings.random));
}

// The time with noise and drift of a kernel of `ctas` CTAs and `ns`, at the given time, with this memory.
inline double taken_ns(double ns, int64_t ctas, double now_ns, uint64_t memory) {
    std::lock_guard<std::mutex> hold(lock);
    if (settings.numbers.empty()) return ns;
    if (const double each_us = settings.number("cta_us", 0); each_us > 0) ns = 1000 * each_us * static_cast<double>(ctas);
    const double turns = now_ns / 1e9 / settings.number("drift_period_s", 7);
    double share = settings.number("clock_share", 1) * std::exp(settings.number("drift", 0) * std::sin(2 * M_PI * turns));
    if (const double spread = settings.number("placement", 0); spread != 0) {
        std::mt19937_64 of_place(memory);
        std::normal_distribution<double> normal;
        share *= std::exp(-spread * normal(of_place));
    }
    return ns * settings.noise / share;
}

}  // namespace virtual_clock
