#include "progress.h"

#include <fmt/core.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace nq::cli {
namespace {

constexpr std::size_t kBar = 24;
constexpr std::chrono::milliseconds kBetweenDrawings{50};  // hits come by the thousand a second

bool draws_bars() {
    const char* const terminal = std::getenv("TERM");
    return ::isatty(STDERR_FILENO) != 0 && terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

std::size_t columns() {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::uint64_t total) : total_(total), terminal_(draws_bars()) {}

void Progress::step(const std::string& text, Keep keep) {
    ++done_;
    if (!terminal_) {
        fmt::print(stderr, "[{}/{}] {}\n", done_, total_, text);
        return;
    }
    if (keep == Keep::yes) {
        clear();
        fmt::print(stderr, "{}\n", text);
    }
    const auto now = std::chrono::steady_clock::now();
    if (keep == Keep::no && done_ != total_ && now - drawn_ < kBetweenDrawings) return;
    drawn_ = now;
    draw(text);
}

void Progress::draw(const std::string& text) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
    const std::uint64_t total = std::max(total_, done_);
    const auto left = rate > 0 ? static_cast<std::uint64_t>(std::ceil(static_cast<double>(total - done_) / rate)) : 0;
    const auto filled = static_cast<std::size_t>(kBar * done_ / total);
    std::string line = fmt::format("[{:=<{}}{:{}}] {}/{}  {:.1f}/s  {}:{:02} left  {}", "", filled, "", kBar - filled, done_,
                                   total, rate, left / 60, left % 60, text);
    line.resize(std::min(line.size(), columns() - 1));  // in the last column a terminal may begin a new line
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
}

void Progress::clear() {
    if (terminal_ && done_ != 0) std::fputs("\r\033[K", stderr);
}

}  // namespace nq::cli
