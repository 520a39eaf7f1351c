// How far a long command is, on stderr: a bar with rate and remaining time on a terminal, a plain line for each step elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nq::cli {

class Progress {
public:
    enum class Keep { no, yes };  // yes: the line stays on a terminal, too

    explicit Progress(std::uint64_t total);
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // One more of the total.
    void step(const std::string& text, Keep keep);
    void clear();  // the bar, so that other output can follow

    std::uint64_t done() const { return done_; }

private:
    void draw(const std::string& text);

    const std::uint64_t total_;
    const bool terminal_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point drawn_{};
    std::uint64_t done_ = 0;
};

}  // namespace nq::cli
