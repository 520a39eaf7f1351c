#include "support/log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.h"

namespace {

using nq::Logger;
using Lines = std::vector<std::pair<uint32_t, std::string>>;

void record(uint32_t level, const char* message, void* payload) {
    static_cast<Lines*>(payload)->emplace_back(level, message);
}

void say_everything(Logger& log) {
    log.debug("d");
    log.info("i");
    log.warn("w");
    log.error("e");
}

// What a function writes to stderr.
template <class Function>
std::string stderr_of(Function function) {
    std::FILE* const file = std::tmpfile();
    REQUIRE(file);
    std::fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    function();
    std::fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    REQUIRE(std::fread(text.data(), 1, text.size(), file) == text.size());
    std::fclose(file);
    return text;
}

}  // namespace

TEST_CASE("the least level decides what reaches the callback") {
    const Lines all = {{NQ_LOG_DEBUG, "d"}, {NQ_LOG_INFO, "i"}, {NQ_LOG_WARN, "w"}, {NQ_LOG_ERROR, "e"}};
    for (int least = NQ_LOG_DEBUG; least <= NQ_LOG_OFF; ++least) {
        Lines lines;
        Logger log(record, &lines, static_cast<nq_log_level>(least));
        say_everything(log);
        CHECK(lines == Lines(all.begin() + (least - NQ_LOG_DEBUG), all.end()));
    }
}

TEST_CASE("text is data: braces and percent signs pass unchanged") {
    Lines lines;
    Logger log(record, &lines, NQ_LOG_DEBUG);
    const std::string text = "{} {0} {:d} %s %n 100%";
    log.warn(text);
    log.warn(std::string_view(text).substr(0, 2));
    CHECK(lines == Lines{{NQ_LOG_WARN, text}, {NQ_LOG_WARN, "{}"}});
}

TEST_CASE("without a callback, lines go to stderr") {
    const std::string text = stderr_of([] {
        Logger log(nullptr, nullptr, NQ_LOG_INFO);
        say_everything(log);
    });
    CHECK(text == "normquant: info: i\nnormquant: warning: w\nnormquant: error: e\n");
}

// The registry is the host program's: two contexts, or a program with a logger of the same name, must not meet there.
TEST_CASE("loggers are private") {
    Lines first_lines, second_lines;
    Logger first(record, &first_lines, NQ_LOG_WARN);
    Logger second(record, &second_lines, NQ_LOG_ERROR);
    CHECK(spdlog::get("normquant") == nullptr);
    spdlog::set_level(spdlog::level::off);
    first.warn("one");
    second.warn("two");
    second.error("three");
    spdlog::set_level(spdlog::level::info);
    CHECK(first_lines == Lines{{NQ_LOG_WARN, "one"}});
    CHECK(second_lines == Lines{{NQ_LOG_ERROR, "three"}});
}
