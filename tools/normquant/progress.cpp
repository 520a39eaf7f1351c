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

std::string bar_text(const Progressed& progressed, double seconds) {
    const std::uint64_t done = progressed.done, total = std::max(progressed.total, done), made = done - progressed.hits;
    const double rate = seconds > 0 ? static_cast<double>(made != 0 ? made : done) / seconds : 0;
    std::string left = "--:-- left";
    if (rate > 0 && (made != 0 || done == total)) {
        const auto whole = static_cast<std::uint64_t>(std::ceil(static_cast<double>(total - done) / rate));
        left = fmt::format("{}:{:02} left", whole / 60, whole % 60);
    }
    const std::size_t filled = total != 0 ? static_cast<std::size_t>(kBar * done / total) : 0;
    return fmt::format("[{:=<{}}{:{}}] {}/{}  {:.1f}/s  {}", "", filled, "", kBar - filled, done, total, rate, left);
}

Progress::Progress(std::uint64_t total) : progressed_{.total = total}, terminal_(draws_bars()) {}

void Progress::step(const std::string& text, Step step) {
    const std::lock_guard lock(mutex_);
    ++progressed_.done;
    if (step == Step::hit) ++progressed_.hits;
    if (!terminal_) {
        fmt::print(stderr, "[{}/{}] {}\n", progressed_.done, progressed_.total, text);
        return;
    }
    if (step == Step::failed) {
        clear_line();
        fmt::print(stderr, "{}\n", text);
    }
    const auto now = std::chrono::steady_clock::now();
    if (step != Step::failed && progressed_.done != progressed_.total && now - drawn_ < kBetweenDrawings) return;
    drawn_ = now;
    draw(text);
}

void Progress::draw(const std::string& text) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    std::string line = fmt::format("{}  {}", bar_text(progressed_, seconds), text);
    line.resize(std::min(line.size(), columns() - 1));  // in the last column a terminal may begin a new line
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
}

void Progress::beside(const std::function<void()>& print) {
    const std::lock_guard lock(mutex_);
    clear_line();
    print();
}

void Progress::clear() {
    const std::lock_guard lock(mutex_);
    clear_line();
}

void Progress::clear_line() {
    if (terminal_ && progressed_.done != 0) std::fputs("\r\033[K", stderr);
}

}  // namespace nq::cli
