// One private logger a context: spdlog to the caller's callback, else to stderr. Never in spdlog's global registry,
// which belongs to the program that loads us.
#pragma once

#include <normquant/normquant.h>

#include <memory>
#include <string_view>

namespace spdlog {
class logger;
}

namespace nq {

// What a logger without a callback calls: a line "normquant: warning: text" on stderr.
void log_to_stderr(std::uint32_t level, const char* message, void* payload);

class Logger {
public:
    // callback NULL: log_to_stderr().
    Logger(nq_log_callback callback, void* payload, nq_log_level least);
    ~Logger();
    Logger(const Logger&) = delete;
    Logger& operator=(const Logger&) = delete;

    void debug(std::string_view text);
    void info(std::string_view text);
    void warn(std::string_view text);
    void error(std::string_view text);

private:
    std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace nq
