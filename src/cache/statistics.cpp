#include "cache/statistics.h"

#include "cache/layout.h"
#include "cache/lock.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <functional>
#include <string_view>
#include <thread>

namespace nq {
namespace {

constexpr std::uint64_t kMaxBytes = 64 << 10;
constexpr int kAttempts = 20;
constexpr std::chrono::milliseconds kPause{5};

std::uint64_t value_of(std::string_view text, std::string_view name) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.size() <= name.size() || !line.starts_with(name) || line[name.size()] != ' ') continue;
        std::uint64_t value = 0;
        const char* end = line.data() + line.size();
        const auto [stop, status] = std::from_chars(line.data() + name.size() + 1, end, value);
        return status == std::errc{} && stop == end ? value : 0;
    }
    return 0;
}

}  // namespace

CounterTotals read_statistics(const FileOps& files, const std::string& version_root) {
    CounterTotals totals;
    const OpenedFile file = open_regular(files, layout::stats(version_root));
    if (file.status != OpenedFile::Status::opened) return totals;
    const auto bytes = read_up_to(files, file.fd.get(), kMaxBytes);
    if (!bytes) return totals;
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
#define NQ_READ(name) totals.name = value_of(text, #name);
    NQ_COUNTERS(NQ_READ)
#undef NQ_READ
    return totals;
}

namespace {

bool update_statistics(const FileOps& files, const std::string& version_root, mode_t mode,
                       const std::function<CounterTotals(const CounterTotals&)>& change) {
    const std::string lock_path = fmt::format("{}/{}", layout::locks(version_root), layout::kStatisticsLock);
    for (int attempt = 1;; ++attempt) {
        const FileLock turn = FileLock::try_acquire(files, lock_path, mode);
        if (turn.status() == FileLock::Status::busy && attempt < kAttempts) {
            std::this_thread::sleep_for(kPause);
            continue;
        }
        if (turn.status() != FileLock::Status::held) return false;

        const CounterTotals totals = change(read_statistics(files, version_root));
        std::string text;
#define NQ_WRITE(name) text += fmt::format("{} {}\n", #name, totals.name);
        NQ_COUNTERS(NQ_WRITE)
#undef NQ_WRITE
        const std::string temp = fmt::format("{}/{}", layout::temp(version_root), unique_name());
        if (!write_new_file(files, temp, text, mode, Durability::none)) return false;
        if (files.rename(temp.c_str(), layout::stats(version_root).c_str()) == 0) return true;
        files.unlink(temp.c_str());
        return false;
    }
}

}  // namespace

bool add_statistics(const FileOps& files, const std::string& version_root, mode_t mode, const CounterTotals& totals) {
    return update_statistics(files, version_root, mode, [&](CounterTotals sum) {
#define NQ_ADD(name) sum.name += totals.name;
        NQ_COUNTERS(NQ_ADD)
#undef NQ_ADD
        return sum;
    });
}

bool reset_statistics(const FileOps& files, const std::string& version_root, mode_t mode) {
    return update_statistics(files, version_root, mode, [](const CounterTotals&) { return CounterTotals{}; });
}

}  // namespace nq
