#include "support/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>

#include <cstdio>
#include <string>

namespace nq {
namespace {

spdlog::level::level_enum to_spdlog(nq_log_level level) {
    switch (level) {
        case NQ_LOG_DEBUG:
            return spdlog::level::debug;
        case NQ_LOG_INFO:
            return spdlog::level::info;
        case NQ_LOG_DEFAULT:
        case NQ_LOG_WARN:
            return spdlog::level::warn;
        case NQ_LOG_ERROR:
            return spdlog::level::err;
        case NQ_LOG_OFF:
            break;
    }
    return spdlog::level::off;
}

nq_log_level from_spdlog(spdlog::level::level_enum level) {
    switch (level) {
        case spdlog::level::trace:
        case spdlog::level::debug:
            return NQ_LOG_DEBUG;
        case spdlog::level::info:
            return NQ_LOG_INFO;
        case spdlog::level::warn:
            return NQ_LOG_WARN;
        default:
            return NQ_LOG_ERROR;
    }
}

// Holds no lock during the call: a slow callback delays its own thread only.
class CallbackSink final : public spdlog::sinks::sink {
public:
    CallbackSink(nq_log_callback callback, void* payload) : callback_(callback), payload_(payload) {}

    void log(const spdlog::details::log_msg& message) override {
        const std::string text(message.payload.data(), message.payload.size());
        callback_(from_spdlog(message.level), text.c_str(), payload_);
    }
    void flush() override {}
    void set_pattern(const std::string&) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

private:
    const nq_log_callback callback_;
    void* const payload_;
};

spdlog::string_view_t view(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void log_to_stderr(uint32_t level, const char* message, void*) {
    static constexpr const char* kNames[] = {"", "debug", "info", "warning", "error"};  // by nq_log_level
    // One call, so that lines of several threads do not mix.
    std::fprintf(stderr, "normquant: %s: %s\n", kNames[level], message);
}

Logger::Logger(nq_log_callback callback, void* payload, nq_log_level least)
    : logger_(std::make_shared<spdlog::logger>(
          "normquant", std::make_shared<CallbackSink>(callback ? callback : log_to_stderr, payload))) {
    logger_->set_level(to_spdlog(least));
}

Logger::~Logger() = default;

void Logger::debug(std::string_view text) { logger_->log(spdlog::level::debug, view(text)); }
void Logger::info(std::string_view text) { logger_->log(spdlog::level::info, view(text)); }
void Logger::warn(std::string_view text) { logger_->log(spdlog::level::warn, view(text)); }
void Logger::error(std::string_view text) { logger_->log(spdlog::level::err, view(text)); }

}  // namespace nq
