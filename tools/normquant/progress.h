// How far a long command is, on stderr: a bar with rate and remaining time on a terminal, a plain line for each step elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace nq::cli {

struct Progressed {
    std::uint64_t total = 0;
    std::uint64_t done = 0;
    std::uint64_t hits = 0;  // of the done: they took no time, and tell nothing about what is left
};
// "[=====     ] 5/10  1.0/s  0:05 left", of the last part a guess, and nothing before there is anything to guess by.
std::string bar_text(const Progressed& progressed, double seconds);

class Progress {
public:
    enum class Step { made, hit, failed };  // failed: the line stays on a terminal

    explicit Progress(std::uint64_t total);
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // One more of the total.
    void step(const std::string& text, Step step);
    void clear();  // the bar, so that other output can follow
    // Whatever `print` writes on stderr takes the bar's place. From any thread.
    void beside(const std::function<void()>& print);

    std::uint64_t done() const { return progressed_.done; }

private:
    void clear_line();
    void draw(const std::string& text);

    std::mutex mutex_;  // of stderr, and what follows
    Progressed progressed_;
    const bool terminal_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace nq::cli
