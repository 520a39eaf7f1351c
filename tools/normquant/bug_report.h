// info --bug-report: what a maintainer needs to know, without private names.
#pragma once

#include "command.h"

#include <string>

namespace nq::cli {

// What is not told: the home directory becomes ~, the user's and the host's name USER and HOST.
struct PrivateNames {
    std::string home;
    std::string user;
    std::string host;
};
std::string without_names(std::string text, const PrivateNames& names);

// Adds the system, the settings and doctor's findings to a report of normquant info, and takes the names out of all of it.
void make_bug_report(Report& report);

}  // namespace nq::cli
