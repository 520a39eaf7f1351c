// The counters of all contexts that used a root and were destroyed, summed: <root>/v1/stats, a line "name value" each.
// For people; losing it, or a process that is killed before it adds to it, costs nothing else.
#pragma once

#include "cache/counters.h"
#include "support/file.h"

#include <string>

namespace nq {

// Zeros where there is none, or where a line makes no sense.
CounterTotals read_statistics(const FileOps& files, const std::string& version_root);
// False when the file could not be written, or others are at it all the time. version_root must exist: nothing is created for the sake of counters.
bool add_statistics(const FileOps& files, const std::string& version_root, mode_t mode, const CounterTotals& totals);
bool reset_statistics(const FileOps& files, const std::string& version_root, mode_t mode);

}  // namespace nq
