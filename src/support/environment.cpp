#include "support/environment.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
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

    std::optional<std::uint64_t> size(const char* name) {
        const std::optional<std::string> value = text(name);
        if (!value) return std::nullopt;
        const std::optional<std::uint64_t> bytes = parse_size(*value);
        if (!bytes)
            fail(fmt::format("{}='{}' is not a number of bytes, such as 1073741824, 512M or 2G, or 0 for no limit", name,
                             *value));
        return bytes;
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

// Of the variables that are set and not empty; a path that two of them name counts once.
std::vector<NamedPath> named_paths(const Reader& reader, std::initializer_list<const char*> names) {
    std::vector<NamedPath> paths;
    for (const char* name : names) {
        const std::optional<std::string> path = reader.text(name);
        if (path && !path->empty() && std::ranges::find(paths, *path, &NamedPath::path) == paths.end())
            paths.push_back({name, *path});
    }
    return paths;
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
    std::uint64_t unit = 1;
    if (text.ends_with('K')) unit = 1ull << 10;
    if (text.ends_with('M')) unit = 1ull << 20;
    if (text.ends_with('G')) unit = 1ull << 30;
    if (unit != 1) text.remove_suffix(1);
    std::uint64_t count = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (status != std::errc{} || stop != text.data() + text.size() || count > UINT64_MAX / unit) return std::nullopt;
    return count * unit;
}

std::vector<std::string> split_paths(std::string_view text) {
    std::vector<std::string> paths;
    while (!text.empty()) {
        const std::string_view path = text.substr(0, text.find(':'));
        if (!path.empty()) paths.emplace_back(path);
        text.remove_prefix(std::min(text.size(), path.size() + 1));
    }
    return paths;
}

Result<Environment> read_environment(const std::function<const char*(const char*)>& getter) {
    Reader reader(getter);
    Environment out;
    choose_default_cache_dir(reader, out);
    out.cache_dir = reader.text("NORMQUANT_CACHE_DIR");
    if (out.cache_dir) out.cache_dir_source = "NORMQUANT_CACHE_DIR";
    out.cache_size = reader.size("NORMQUANT_CACHE_SIZE");
    out.cache_readonly = reader.choice("NORMQUANT_CACHE_READONLY", kSwitch).value_or(false);
    out.bundles = split_paths(reader.text("NORMQUANT_BUNDLES").value_or(""));
    out.jit = reader.choice("NORMQUANT_JIT", kSwitch);
    out.nvrtc = reader.non_empty("NORMQUANT_NVRTC", "the path of libnvrtc");
    out.libcuda = reader.non_empty("NORMQUANT_LIBCUDA", "the path of libcuda");
    out.log_level = reader.choice("NORMQUANT_LOG", kLogLevels);
    out.record = reader.non_empty("NORMQUANT_RECORD", "the file to record problems in").value_or("");
    out.dump_dir = reader.non_empty("NORMQUANT_DUMP_DIR", "the directory to dump compiles to").value_or("");
    out.cache_shared = reader.choice("NORMQUANT_CACHE_SHARED", kSwitch).value_or(false);
    out.cuda_homes = named_paths(reader, {"CUDA_HOME", "CUDA_PATH"});
    out.python_environments = named_paths(reader, {"VIRTUAL_ENV", "CONDA_PREFIX"});
    if (reader.error()) return *reader.error();
    return out;
}

Result<Environment> read_environment() {
    return read_environment([](const char* name) -> const char* { return secure_getenv(name); });
}

}  // namespace nq
