#include "cache/trust.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

namespace nq {
namespace {

constexpr std::string_view kOptIn =
    "set NORMQUANT_CACHE_SHARED=on if everyone who can write it is trusted";

Error untrusted(std::string message) { return Error{NQ_ERR_CACHE_UNTRUSTED, std::move(message), {}}; }

bool foreign(const struct stat& info) { return info.st_uid != geteuid() && info.st_uid != 0; }
bool open_to_others(const struct stat& info) { return (info.st_mode & (S_IWGRP | S_IWOTH)) != 0; }

Outcome trust(const struct stat& info, std::string_view what, const std::string& path, bool shared) {
    if (shared) return Unit{};
    if (foreign(info))
        return untrusted(fmt::format("{} {} belongs to uid {}, not to uid {} or root; use another one, or {}", what,
                                     path, info.st_uid, geteuid(), kOptIn));
    if (open_to_others(info))
        return untrusted(fmt::format("{} {} can be written by others (mode {:04o}); run chmod go-w on it, or {}", what,
                                     path, info.st_mode & 07777, kOptIn));
    return Unit{};
}

}  // namespace

Outcome trust_directory(const struct stat& info, const std::string& path, bool shared) {
    if (S_ISLNK(info.st_mode))
        return untrusted(fmt::format("cache directory {} is a symbolic link; name the directory itself", path));
    if (!S_ISDIR(info.st_mode))
        return Error{NQ_ERR_INVALID_ARGUMENT, fmt::format("cache directory {} is not a directory", path), {}};
    return trust(info, "cache directory", path, shared);
}

Outcome trust_bundle(const struct stat& info, const std::string& path, bool shared) {
    return trust(info, "bundle", path, shared);
}

std::optional<std::string> distrust_of_entry(const struct stat& info, bool shared) {
    if (shared) return std::nullopt;
    if (foreign(info)) return fmt::format("it belongs to uid {}", info.st_uid);
    if (open_to_others(info)) return fmt::format("it can be written by others (mode {:04o})", info.st_mode & 07777);
    return std::nullopt;
}

}  // namespace nq
