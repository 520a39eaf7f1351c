// Text that others have written, for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace nq::cli {

// File names and what entries say about themselves come from whoever could write the file. Control characters could
// clear the screen, or forge lines of a report: they, and bytes that are no UTF-8, become \n, \t, \x1b. `kept`: control
// characters that stay.
std::string printable(std::string_view text, std::string_view kept = "");

// A line on stderr, for what goes beside a report.
void note(std::string_view text);

}  // namespace nq::cli
