// The subcommands of normquant cache. One function a command; those that share their parts share a file.
#pragma once

#include "command.h"

#include <memory>

namespace nq::cli {

Command add_cache_list(CLI::App& cache);
Command add_cache_show(CLI::App& cache);
Command add_cache_verify(CLI::App& cache);
Command add_cache_path(CLI::App& cache);
Command add_cache_explain(CLI::App& cache);
Command add_cache_extract(CLI::App& cache);
Command add_cache_export(CLI::App& cache);
Command add_cache_import(CLI::App& cache);
Command add_cache_gc(CLI::App& cache);
Command add_cache_clear(CLI::App& cache);
Command add_cache_stats(CLI::App& cache);

}  // namespace nq::cli
