#include "support/environment.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace nq {
namespace {

template <class T>
struct Choice {
    std::string_view text;
    T value;
};

constexpr Choice<bool> kSwitch[] = {{"on", true}, {"off", false}};
constexpr Choice<nq_log_level> kLogLevels[] = {{"debug", NQ_LOG_DEBUG},
                                               {"info", NQ_LOG_INFO},
                                               {"warn", NQ_LOG_WARN},
                                               {"error", NQ_LOG_ERROR},
                                               {"off", NQ_LOG_OFF}};

// Reads variables and remembers the first that is wrong.
class Reader {
public:
    explicit Reader(const std::function<const char*(const char*)>& getter) : getter_(getter) {}

    std::optional<std::string> text(const char* name) const {
        const char* value = getter_(name);
        return value ? std::optional<std::string>(value) : std::nullopt;
    }

    std::optional<std::string> non_empty(const char* name, std::string_view meaning) {
        std::optional<std::string> value = text(name);
        if (value && value->empty()) fail(fmt::format("{} is empty; set it to {}, or unset it", name, meaning));
        return value;
    }

    template <class T, std::size_t N>
    std::optional<T> choice(const char* name, const Choice<T> (&choices)[N]) {
        const std::optional<std::string> value = text(name);
        if (!value) return std::nullopt;
        std::string accepted;
        for (const Choice<T>& c : choices) {
            if (*value == c.text) return c.value;
            accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", c.text);
        }
        fail(fmt::format("{}='{}' is not one of: {}", name, *value, accepted));
        return std::nullopt;
    }

    const std::optional<Error>& error() const { return error_; }

private:
    void fail(std::string message) {
        if (!error_) error_ = Error{NQ_ERR_INVALID_ARGUMENT, std::move(message), {}};
    }

    const std::function<const char*(const char*)>& getter_;
    std::optional<Error> error_;
};

bool absolute(const std::optional<std::string>& path) { return path && !path->empty() && path->front() == '/'; }

std::optional<std::string> passwd_home() {
    const long hint = sysconf(_SC_GETPW_R_SIZE_MAX);
    std::vector<char> buffer(hint > 0 ? static_cast<std::size_t>(hint) : 16384);
    passwd record;
    passwd* found = nullptr;
    if (getpwuid_r(geteuid(), &record, buffer.data(), buffer.size(), &found) != 0 || !found || !found->pw_dir)
        return std::nullopt;
    return found->pw_dir;
}

std::string join(std::string base, std::string_view tail) {
    while (base.size() > 1 && base.back() == '/') base.pop_back();
    if (base != "/") base += '/';
    return base.append(tail);
}

// The XDG rules: a relative XDG_CACHE_HOME is ignored. A relative or empty HOME names no place either.
void choose_default_cache_dir(const Reader& reader, Environment& out) {
    if (const auto xdg = reader.text("XDG_CACHE_HOME"); absolute(xdg)) {
        out.default_cache_dir = join(*xdg, "normquant");
        out.cache_dir_source = "XDG_CACHE_HOME";
    } else if (const auto home = reader.text("HOME"); absolute(home)) {
        out.default_cache_dir = join(*home, ".cache/normquant");
        out.cache_dir_source = "HOME";
    } else if (const auto passwd = passwd_home(); absolute(passwd)) {
        out.default_cache_dir = join(*passwd, ".cache/normquant");
        out.cache_dir_source = "the passwd entry's home directory";
    }
}

}  // namespace

Result<Environment> read_environment(const std::function<const char*(const char*)>& getter) {
    Reader reader(getter);
    Environment out;
    choose_default_cache_dir(reader, out);
    out.cache_dir = reader.text("NORMQUANT_CACHE_DIR");
    if (out.cache_dir) out.cache_dir_source = "NORMQUANT_CACHE_DIR";
    out.jit = reader.choice("NORMQUANT_JIT", kSwitch);
    out.nvrtc = reader.non_empty("NORMQUANT_NVRTC", "the path of libnvrtc");
    out.libcuda = reader.non_empty("NORMQUANT_LIBCUDA", "the path of libcuda");
    out.log_level = reader.choice("NORMQUANT_LOG", kLogLevels);
    out.cache_shared = reader.choice("NORMQUANT_CACHE_SHARED", kSwitch).value_or(false);
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
        const std::optional<std::string> home = reader.text(name);
        if (home && !home->empty() && std::ranges::find(out.cuda_homes, *home) == out.cuda_homes.end())
            out.cuda_homes.push_back(*home);
    }
    if (reader.error()) return *reader.error();
    return out;
}

Result<Environment> read_environment() {
    return read_environment([](const char* name) -> const char* { return secure_getenv(name); });
}

}  // namespace nq
