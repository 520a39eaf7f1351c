#include "runtime/record.h"

#include "problem/option_values.h"
#include "support/file.h"

#include <fmt/format.h>

#include <string_view>

namespace nq {
namespace {

constexpr std::uint64_t kMaxBytes = 16 << 20;  // of problems that nobody has so many of

std::string with_target(std::string text, const Arch& arch) {
    text.pop_back();
    return text + fmt::format(",\"arch\":\"{}\"}}\n", arch.name());
}

bool has_line(std::string_view text, std::string_view line) {
    for (std::size_t at = text.find(line); at != std::string_view::npos; at = text.find(line, at + 1)) {
        if (at == 0 || text[at - 1] == '\n') return true;
    }
    return false;
}

Outcome add_line(const FileOps& files, const std::string& path, std::string line) {
    const OpenedFile present = open_regular(files, path);
    switch (present.status) {
        case OpenedFile::Status::absent:
            break;
        case OpenedFile::Status::opened: {
            const auto bytes = read_up_to(files, present.fd.get(), kMaxBytes);
            if (!bytes) return io_error("read", path, errno);
            if (bytes->size() == kMaxBytes) return Error{NQ_ERR_CACHE_IO, fmt::format("{} has {} bytes: it is full", path, kMaxBytes), {}};
            const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
            if (has_line(text, line)) return Unit{};
            // A person wrote the last line, or a process was killed while it did: this is the next one all the same.
            if (!text.empty() && text.back() != '\n') line.insert(line.begin(), '\n');
            break;
        }
        case OpenedFile::Status::wrong_kind:
        case OpenedFile::Status::failed:
            return Error{NQ_ERR_CACHE_IO, fmt::format("{} {}", path, present.fault), {}};
    }
    const Descriptor file(files, files.open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file.valid()) return io_error("open", path, errno);
    // One write to its end: lines of other processes stay whole. Two that look at the same time may both add it.
    if (!write_all(files, file.get(), line)) return io_error("write", path, errno);
    return Unit{};
}

}  // namespace

void record(Context& context, const Problem& problem, const Arch& arch) {
    const std::string& path = context.config().record;
    if (path.empty()) return;
    const Outcome added = add_line(system_files(), path, with_target(manifest_text(problem), arch));
    if (!added && !context.process().record_failed.exchange(true))
        context.log().warn(fmt::format("NORMQUANT_RECORD: not recorded: {}", added.error().message));
}

}  // namespace nq
